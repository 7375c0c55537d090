"""The records of a logstore for a command: the last ones, all from a place on, and what comes."""

import asyncio
import select
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, Literal

from raftwood.app.stream_records import Choice
from raftwood.base.errors import InvalidConfiguration, InvalidInput, StoreError
from raftwood.base.position import Position
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.client.pulled_batches import LogRecord, PulledBatch
from raftwood.loghub.client.reader import AsyncReader, ReaderSettings, Start
from raftwood.loghub.errors import ShardNotFound

At = Literal["begin", "end"] | int
"""An int: seconds since 1970, by the time of receipt."""
_SETTINGS: Final = ReaderSettings(skips_freed=True)
_BACK_FIRST: Final = 2
_BACK_FACTOR: Final = 4
_LOOK_S: Final = 2.0


class StreamTail:
    """Of one logstore, or one shard of it."""

    def __init__(
        self,
        client: AsyncLogHubClient,
        choice: Choice,
        warn: Callable[[str], None],
        *,
        project: str,
        logstore: str,
        shard: int | None = None,
    ) -> None:
        self._client = client
        self._choice = choice
        self._warn = warn
        self._project = project
        self._logstore = logstore
        self._shard = shard

    async def show(
        self, write: Callable[[list[LogRecord]], None], *, at: At | None, last: int, follow: bool
    ) -> None:
        """Write all from a place on, or the last ones where none is named; then what comes."""
        start: Start
        if at is not None:
            start = at
        else:
            ends = await self._ends()
            write(await self._last(ends, last))
            if not follow:
                return
            start = ends
        async with self._reader(self._shard, start, follow=follow) as reader:
            async for batch in reader.batches():
                records = list(self._chosen(batch))
                if records:
                    write(records)

    async def _ends(self) -> dict[int, Position]:
        shards = await self._client.shards(self._project, self._logstore)
        chosen = [each.id for each in shards if self._shard in (None, each.id)]
        if not chosen:
            raise ShardNotFound(
                f"logstore {self._logstore} has no shard {self._shard}: list its shards"
            )
        return {each: await self._cursor(each, "end") for each in chosen}

    async def _last(self, ends: dict[int, Position], count: int) -> list[LogRecord]:
        """Of all shards, in the order in which gateways received them."""
        if not count:
            return []
        found: list[tuple[int, LogRecord]] = []
        for shard, end in ends.items():
            found += await self._last_of(shard, end, count)
        found.sort(key=lambda each: each[0])  # which keeps the order within a shard
        return [record for _, record in found[-count:]]

    async def _last_of(self, shard: int, end: Position, count: int) -> list[tuple[int, LogRecord]]:
        """Further back each time, until there are enough of them."""
        begin = await self._cursor(shard, "begin")
        back = _BACK_FIRST
        while True:
            start = Position(max(begin, end - back))
            kept: deque[tuple[int, LogRecord]] = deque(maxlen=count)
            async with self._reader(shard, {shard: start}, follow=False) as reader:
                async for batch in reader.batches():
                    if batch.position < end:
                        received_ms = batch.head.received_ms
                        kept.extend((received_ms, each) for each in self._chosen(batch))
            if len(kept) == count or start <= begin:
                return list(kept)
            back *= _BACK_FACTOR

    def _reader(self, shard: int | None, start: Start, *, follow: bool) -> AsyncReader:
        return self._client.reader(
            self._project,
            self._logstore,
            shard=shard,
            start=start,
            follow=follow,
            settings=_SETTINGS,
        )

    async def _cursor(self, shard: int, at: At) -> Position:
        return await self._client.cursor(self._project, self._logstore, shard=shard, at=at)

    def _chosen(self, batch: PulledBatch) -> Iterator[LogRecord]:
        try:
            records = batch.records()
        except InvalidConfiguration:
            raise  # what is missing is on this side
        except (InvalidInput, StoreError) as error:
            self._warn(
                f"the batch at position {batch.position} of shard {batch.shard} cannot be read: "
                f"{error.message}"
            )
            return iter(())
        return filter(self._choice.takes, records)


async def while_somebody_reads(work: Coroutine[Any, Any, None]) -> None:
    """Do it, and give up where nobody reads the output, even if nothing is written to it."""
    task = asyncio.create_task(work)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=_LOOK_S)
            _check_output()
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _check_output() -> None:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        raise BrokenPipeError
