"""Reading a logstore's shards together: a shard is read once all its parents have been.

So the records of one key come in the order in which they were put, across splits and merges.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Final, Literal, Protocol

import msgspec

from raftwood.app.stream_records import Choice, ShownRecord, records_of
from raftwood.base.errors import InvalidConfiguration, InvalidInput, NotFound, StoreError
from raftwood.base.position import Position
from raftwood.loghub.model import Shard
from raftwood.loghub.wire import Pulled

PULL_BATCHES: Final = 256
PULL_BYTES: Final = 4 << 20
WAIT_MS: Final = 5_000
_BACK_FIRST: Final = 64
_BACK_FACTOR: Final = 8

At = Literal["begin", "end"] | int
"""An int: seconds since 1970, by the time of receipt."""


class Streams(Protocol):
    """What is asked of LogHub."""

    async def shards(self, project: str, logstore: str) -> list[Shard]: ...
    async def cursor(self, project: str, logstore: str, shard: int, at: int | str) -> Position: ...
    async def pull(
        self,
        project: str,
        logstore: str,
        shard: int,
        start: Position,
        *,
        batches_max: int,
        bytes_max: int,
        wait_ms: int = 0,
    ) -> Pulled: ...


class _Place(msgspec.Struct):
    """How far a shard was read."""

    next: Position
    until: Position | None
    """Where to stop; None to go on for ever."""
    parents: tuple[int, ...]


class StreamTail:
    """Reads one logstore, or one shard of it."""

    def __init__(
        self,
        hub: Streams,
        *,
        project: str,
        logstore: str,
        shard: int | None,
        choice: Choice,
        when_unreadable: Callable[[str], None],
    ) -> None:
        self._hub = hub
        self._project = project
        self._logstore = logstore
        self._shard = shard
        self._choice = choice
        self._when_unreadable = when_unreadable
        self._places: dict[int, _Place] = {}
        """Of shards that are not read to their end yet."""
        self._done: set[int] = set()

    async def start(self, at: At, *, follows: bool) -> None:
        """Begin each shard there; without `follows`, end where it ends now."""
        for shard in await self._shards():
            first = await self._cursor(shard.id, at)
            until = None if follows else await self._cursor(shard.id, "end")
            self._places[shard.id] = _Place(first, until, shard.parents)

    async def last(self, count: int, *, follows: bool) -> list[ShownRecord]:
        """The last records of all shards, in order of their times; then begin behind them."""
        await self.start("end", follows=follows)
        found: list[ShownRecord] = []
        for shard, place in self._places.items():
            found += await self._last_of(shard, place.next, count)
        found.sort(key=lambda each: each.time_ns)  # which keeps the order within a shard
        return found[-count:]

    async def _last_of(self, shard: int, end: Position, count: int) -> list[ShownRecord]:
        """Further back each time, until there are enough of them."""
        begin = await self._cursor(shard, "begin")
        back = max(_BACK_FIRST, count)
        while True:
            start = Position(max(begin, end - back))
            kept: deque[ShownRecord] = deque(maxlen=count)
            position = start
            while position < end:
                pulled = await self._pull(shard, position, 0)
                for each in self._chosen(shard, pulled):
                    if int(each.position) < end:
                        kept.append(each)
                if pulled.next <= position:
                    break
                position = pulled.next
            if len(kept) == count or start <= begin:
                return list(kept)
            back *= _BACK_FACTOR

    async def records(self, when_idle: Callable[[], None]) -> AsyncIterator[list[ShownRecord]]:
        """What comes, shard by shard; `when_idle` is called where nothing came for a while."""
        async with _tasks() as pulling:
            while True:
                for shard, place in self._readable():
                    if shard not in pulling.values():
                        wait_ms = WAIT_MS if place.until is None else 0
                        task = asyncio.create_task(self._pull(shard, place.next, wait_ms))
                        pulling[task] = shard
                if not pulling:
                    return
                done, _ = await asyncio.wait(pulling, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=lambda each: pulling[each]):
                    shard = pulling.pop(task)
                    try:
                        pulled = task.result()
                    except NotFound:
                        await self._gone(shard)
                        continue
                    records = await self._take(shard, pulled)
                    if records:
                        yield records
                    elif not pulled.batches:
                        when_idle()

    def _readable(self) -> Iterator[tuple[int, _Place]]:
        for shard, place in self._places.items():
            if not any(parent in self._places for parent in place.parents):
                yield shard, place

    async def _take(self, shard: int, pulled: Pulled) -> list[ShownRecord]:
        place = self._places[shard]
        records = list(self._chosen(shard, pulled))
        if place.until is not None:
            records = [each for each in records if int(each.position) < place.until]
        has_moved = pulled.next > place.next
        place.next = pulled.next
        if place.until is not None and (place.next >= place.until or not has_moved):
            self._end(shard)
        elif pulled.is_ended:
            self._end(shard)
            await self._add_children()
        return records

    def _end(self, shard: int) -> None:
        del self._places[shard]
        self._done.add(shard)

    async def _gone(self, shard: int) -> None:
        """It was deleted, or its whole logstore was, which the next question says."""
        self._end(shard)
        await self._add_children()

    async def _add_children(self) -> None:
        """Those that took over, from their beginning."""
        if self._shard is not None:
            return
        for shard in await self._hub.shards(self._project, self._logstore):
            if shard.id not in self._places and shard.id not in self._done:
                first = await self._cursor(shard.id, "begin")
                self._places[shard.id] = _Place(first, None, shard.parents)

    def _chosen(self, shard: int, pulled: Pulled) -> Iterator[ShownRecord]:
        for batch in pulled.batches:
            try:
                records = list(records_of(shard, batch))
            except InvalidConfiguration:
                raise  # what is missing is on this side
            except (InvalidInput, StoreError) as error:
                self._when_unreadable(
                    f"the batch at position {batch.position} of shard {shard} cannot be read: "
                    f"{error.message}"
                )
                continue
            yield from filter(self._choice.takes, records)

    async def _shards(self) -> list[Shard]:
        found = await self._hub.shards(self._project, self._logstore)
        if self._shard is None:
            return found
        chosen = [each for each in found if each.id == self._shard]
        if not chosen:
            raise NotFound(f"logstore {self._logstore} has no shard {self._shard}: list its shards")
        return chosen

    async def _cursor(self, shard: int, at: At) -> Position:
        return await self._hub.cursor(self._project, self._logstore, shard, at)

    async def _pull(self, shard: int, start: Position, wait_ms: int) -> Pulled:
        return await self._hub.pull(
            self._project,
            self._logstore,
            shard,
            start,
            batches_max=PULL_BATCHES,
            bytes_max=PULL_BYTES,
            wait_ms=wait_ms,
        )


@asynccontextmanager
async def _tasks() -> AsyncIterator[dict[asyncio.Task[Pulled], int]]:
    """Tasks that are put here end with the block."""
    tasks: dict[asyncio.Task[Pulled], int] = {}
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
