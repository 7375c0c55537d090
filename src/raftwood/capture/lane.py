"""Stores one partition's chunks in its shard: in order, each once, from one process at a time.

A partition has a producer's name, and each process that captures it a tenure: a chunk is stored
under the sequence (tenure, chunk). The log knows a producer's last sequences, stores none of them
twice, and refuses what is far behind the last one. So the first chunk of a larger tenure is a
fence: the log refuses what a process of a smaller tenure sends later, and the new process reads
back all that was stored before.

After a split or merge, the next shard's log does not know these fences. So a process continues
there only after it has read the former shard to its final end and found no larger tenure: a process
that takes over from now on puts its fence into the next shard.

`HubStream` is the target logstore: it stores batches under a producer's name and reads them back.
"""

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from raftwood.base.compression import Codec
from raftwood.base.errors import Conflict, SequenceForgotten
from raftwood.base.position import Position
from raftwood.capture.events import Point, Stamp, decode_stamp, encode_mark, encode_stamp
from raftwood.delivery.lanes import successor
from raftwood.loghub.batches import Batch
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.client.pulled_batches import PulledBatch, batches_of, rows_of
from raftwood.loghub.errors import SHARD_ENDED, ShardNotFound
from raftwood.loghub.model import Shard, ShardStatus
from raftwood.loghub.shards import contains, hash_key

_WRITABLE: Final = (ShardStatus.READWRITE, ShardStatus.SEALING)
_PULL_BYTES: Final = 4 << 20


def place_of(table: str, incarnation: int, partition: int) -> str:
    """The hash key of a partition, fixed for ever: it selects the shard."""
    return hash_key(f"{table}/{incarnation}/{partition}".encode())


def shard_at(shards: list[Shard], place: str) -> Shard | None:
    """The shard that accepts writes for a hash key; None if there is none at the moment."""
    found = [
        each
        for each in shards
        if each.status in _WRITABLE and contains(each.begin, each.end, place)
    ]
    return max(found, key=lambda each: each.id, default=None)


class HubStream:
    """The logstore that changes are captured into."""

    def __init__(self, client: AsyncLogHubClient, *, project: str, logstore: str) -> None:
        self._client = client
        self.project = project
        self.logstore = logstore

    async def shards(self) -> list[Shard]:
        return await self._client.shards(self.project, self.logstore)

    async def put(
        self, body: bytes, count: int, *, shard: int, producer: str, sequence: int
    ) -> Position:
        batch = Batch.packed(body, records=count, codec=Codec.LZ4)
        return await self._client.put(
            self.project, self.logstore, batch, shard=shard, producer=producer, sequence=sequence
        )

    async def first(self, shard: int) -> Position:
        return await self._client.cursor(self.project, self.logstore, shard=shard, at="begin")

    async def end(self, shard: int) -> Position:
        return await self._client.cursor(self.project, self.logstore, shard=shard, at="end")

    async def batches(
        self, shard: int, *, start: Position, through: Position
    ) -> AsyncIterator[PulledBatch]:
        """Yields the batches from `start` up to the shard's present end, and at least through
        `through`. Skips batches that were freed meanwhile.
        """
        end = max(await self.end(shard), through + 1)
        while start < end:
            pulled = await self._client.pull(
                self.project, self.logstore, shard=shard, position=start, bytes_max=_PULL_BYTES
            )
            for batch in batches_of(shard, pulled):
                yield batch
            if pulled.is_ended or (pulled.next == start and start > through):
                return
            start = pulled.next

    async def batch_at(self, shard: int, position: Position) -> PulledBatch | None:
        """Returns the batch at this position; None if it was freed."""
        pulled = await self._client.pull(
            self.project, self.logstore, shard=shard, position=position, batches_max=1
        )
        found = batches_of(shard, pulled)
        return found[0] if found and found[0].position == position else None


CHUNK_BITS: Final = 32
_HEIR_S_MAX: Final = 30.0


class LaneTakenOver(Conflict):
    """Another process captures under the same name."""

    code = "capture_taken_over"


class LaneOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The capture and the process that store a batch."""

    name: str
    process: str
    table: str
    incarnation: int

    def producer(self, partition: int) -> str:
        return f"capture-{self.name}-{self.incarnation}-{partition}"

    def is_of(self, stamp: Stamp | None) -> bool:
        """Whether a batch belongs to this capture, whichever process stored it."""
        return stamp is not None and (stamp.name, stamp.incarnation) == (
            self.name,
            self.incarnation,
        )


class CaptureLane:
    """Stores one partition's chunks; one put at a time."""

    def __init__(self, stream: HubStream, owner: LaneOwner, partition: int, *, place: str) -> None:
        self._stream = stream
        self._owner = owner
        self.partition = partition
        self._place = place
        self._tenure = 0
        self._chunk = 0
        self.shard: int | None = None
        self.stored_at = Position(0)
        """Position of the last chunk in the shard."""

    async def begin(self, tenure: int, *, time_ns: int) -> None:
        """Stores the fence of a tenure; `SequenceForgotten` if the log has a larger tenure."""
        self._tenure, self._chunk = tenure, 0
        body = encode_mark("begin", {}, time_ns)
        await self._put(body, 1, self._stamp(0, process=self._owner.process))

    async def join(self, tenure: int, *, time_ns: int) -> None:
        """Like `begin`, for a tenure that has begun in other lanes. Raises `LaneTakenOver` if
        another process has stored a fence of the same or a larger tenure.
        """
        try:
            await self.begin(tenure, time_ns=time_ns)
        except SequenceForgotten as error:
            raise self._taken_over() from error
        assert self.shard is not None
        batch = await self._stream.batch_at(self.shard, self.stored_at)
        stamp = None if batch is None else decode_stamp(rows_of(batch.raw()).tags)
        if stamp is None or stamp.process != self._owner.process:
            raise self._taken_over()

    async def put(self, body: bytes, count: int, point: Point) -> None:
        """Stores changes; raises `LaneTakenOver` if another process has taken over.

        After any other error the caller must put the same changes again before others.
        """
        # A failed put may have been stored: the retry uses the same number.
        try:
            await self._put(body, count, self._stamp(self._chunk + 1, point=point))
        except SequenceForgotten as error:
            raise self._taken_over() from error
        self._chunk += 1

    def _stamp(self, chunk: int, *, process: str = "", point: Point | None = None) -> Stamp:
        return Stamp(
            name=self._owner.name,
            incarnation=self._owner.incarnation,
            partition=self.partition,
            tenure=self._tenure,
            chunk=chunk,
            process=process,
            point=point,
        )

    async def _put(self, body: bytes, count: int, stamp: Stamp) -> None:
        whole = body + encode_stamp(stamp, table=self._owner.table)
        while True:
            if self.shard is None:
                self.shard = await self._heir()
            try:
                self.stored_at = await self._stream.put(
                    whole,
                    count,
                    shard=self.shard,
                    producer=self._owner.producer(self.partition),
                    sequence=stamp.tenure << CHUNK_BITS | stamp.chunk,
                )
            except SHARD_ENDED:
                await self._check_former(self.shard)
                self.shard = None
            else:
                return

    async def _check_former(self, shard: int) -> None:
        """Raises `LaneTakenOver` if an ended shard has another's fence behind our last chunk."""
        try:
            found = self._stream.batches(shard, start=self.stored_at, through=self.stored_at)
            async for batch in found:
                stamp = decode_stamp(rows_of(batch.raw()).tags)
                if (
                    self._owner.is_of(stamp)
                    and stamp is not None
                    and stamp.partition == self.partition
                    and stamp.tenure > self._tenure
                ):
                    raise self._taken_over()
        except ShardNotFound:
            pass  # deleted, with all its batches

    async def _heir(self) -> int:
        async def find() -> Shard | None:
            return shard_at(await self._stream.shards(), self._place)

        missing = f"no shard of logstore {self._stream.logstore} takes partition {self.partition}"
        return (await successor(find, timeout_s=_HEIR_S_MAX, missing=missing)).id

    def _taken_over(self) -> LaneTakenOver:
        return LaneTakenOver(
            f"another process captures {self._owner.table} as {self._owner.name!r} now: give each "
            "capture a name of its own, or let one run"
        )
