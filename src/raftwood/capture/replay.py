"""`TableReplay`: applies a stream of changes to a table, shard by shard, as a lease consumer does.

The new owner of a shard first puts a fence into all partitions of the table (`FENCE`): they refuse
what an earlier owner sends later. It resumes at the checkpoint and applies what follows in order,
some of it for the second time. Writes are absolute, so the table ends as the stream says, and no
older value lands behind a newer one. Between two flushes, only the last write of each key is
applied.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, cast

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.logs import get_logger
from raftwood.capture.events import decode_stamp, slots_of, write_of
from raftwood.loghub.client.pulled_batches import Contents, LogRecord
from raftwood.loghub.consumer.checkpoints import AsyncCheckpointTracker
from raftwood.loghub.consumer.processor import AsyncProcessor
from raftwood.loghub.consumer.source import ShardBatch
from raftwood.zeppelin.client import AsyncKv
from raftwood.zeppelin.records import KeyWrite
from raftwood.zeppelin.slots import slot_of

WRITES_MAX: Final = 2_000
WRITES_BYTES_MAX: Final = 1 << 20
"""Bytes of one step; one write may exceed it."""


class Apply(msgspec.Struct, frozen=True):
    """Writes keys."""

    writes: tuple[KeyWrite, ...]


class Clear(msgspec.Struct, frozen=True):
    """Deletes all keys in these slots."""

    slots: range


Step = Apply | Clear


def steps_of(contents: Iterable[Mapping[str, str | bytes]]) -> Iterator[Step]:
    """Yields the steps that some records of a shard amount to."""
    pending: dict[bytes, KeyWrite] = {}
    size = 0
    for each in contents:
        match each.get("op"):
            case "set" | "delete":
                write = write_of(each)
                pending[write.key] = write
                size += len(write.key) + len(write.data or b"")
            case "flush":
                if pending:
                    yield Apply(tuple(pending.values()))
                    pending, size = {}, 0
                yield Clear(slots_of(each))
            case _:
                continue
        if len(pending) >= WRITES_MAX or size >= WRITES_BYTES_MAX:
            yield Apply(tuple(pending.values()))
            pending, size = {}, 0
    if pending:
        yield Apply(tuple(pending.values()))


TENURE_SHIFT: Final = 40
DRAWN_SHIFT: Final = 24
"""16 random bits stand below the tenure: of two owners that begin at once, one is refused."""
_log = get_logger("replay")


class TableReplay(AsyncProcessor):
    """Applies one shard to the table."""

    def __init__(self, environment: Environment, kv: AsyncKv, *, group: str) -> None:
        self._environment = environment
        self._kv = kv
        self._group = group
        self._producer = ""
        self._number = 0

    async def initialize(self, shard_id: str) -> None:
        self._producer = f"replay-{self._group}-{shard_id}"
        await self._begin()

    async def _begin(self) -> None:
        known = await self._kv.fence(self._producer)
        tenure = (known >> TENURE_SHIFT) + 1 if known >= 0 else 1
        drawn = self._environment.random.getrandbits(16)
        self._number = tenure << TENURE_SHIFT | drawn << DRAWN_SHIFT
        await self._kv.fence(self._producer, self._number)

    async def process(self, batches: Sequence[ShardBatch], tracker: AsyncCheckpointTracker) -> None:
        contents: list[Contents] = []
        for batch in batches:
            records = cast("list[LogRecord]", batch.records())
            if records and decode_stamp(records[0].tags) is not None:
                contents += [record.contents for record in records]
        for step in steps_of(contents):
            if isinstance(step, Apply):
                await self._apply(step.writes)
            else:
                await self._clear(step.slots)
        await tracker.save_checkpoint()

    async def _next(self) -> int:
        self._number += 1
        if not self._number & (1 << DRAWN_SHIFT) - 1:
            await self._begin()
            self._number += 1
        return self._number

    async def _apply(self, writes: Sequence[KeyWrite]) -> None:
        await self._kv.apply(self._producer, await self._next(), writes)

    async def _clear(self, slots: range) -> None:
        left = await self._kv.clear(self._producer, await self._next(), slots)
        if not left:
            return
        # Some partitions have other slots too: find their keys by a scan.
        _log.info("keys of a flush are deleted one by one", first=slots[0], last=slots[-1])
        found: list[KeyWrite] = []
        async for key in self._kv.scan():
            if slot_of(key) in slots:
                found.append(KeyWrite(key, None))
            if len(found) >= WRITES_MAX:
                await self._apply(found)
                found = []
        if found:
            await self._apply(found)
