"""`AsyncReader`: a shard, or all shards of a logstore, as an iterator of records or batches.

    async with client.reader("project", "logstore", follow=True) as reader:
        async for record in reader: ...

Shards are read side by side; what one key was given comes in order, as the children of a shard
that was split or merged are read after all of their parents. A few pulls are read ahead.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import msgspec

from raftwood.base.errors import InvalidConfiguration, InvalidInput, RaftwoodError
from raftwood.base.position import Position, position_from_bytes, position_to_bytes
from raftwood.loghub.client.errors import RecordsFreed
from raftwood.loghub.client.gateways import Gateways
from raftwood.loghub.client.lineage import startable
from raftwood.loghub.client.pulled_batches import LogRecord, PulledBatch, joined_tables
from raftwood.loghub.client.reader_checkpoints import ReaderCheckpoints
from raftwood.loghub.errors import ShardNotFound
from raftwood.loghub.model import Shard
from raftwood.loghub.wire import (
    CURSOR,
    PULL,
    SHARDS,
    CursorRequest,
    Pulled,
    PullRequest,
    StreamRequest,
    decode_pulled,
    encode_pull,
)

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

Start: TypeAlias = Literal["begin", "end"] | int | Mapping[int, int]
"""Where to begin: the first or behind the last record, those received from a time on (in seconds
since 1970), or at positions by shard."""
TABLE_RECORDS_MAX: Final = 1_000_000
TABLE_BYTES_MAX: Final = 256 << 20
_RETRY_MS: Final = 5_000
_PAUSE_S: Final = 0.005


class ReaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much a reader asks for, and what it does about what is gone."""

    pull_bytes_max: int = 2 << 20
    pull_batches_max: int = 1_000
    prefetch_bytes_max: int = 8 << 20
    """Read ahead, of all shards together; each shard may go beyond it by one pull."""
    wait_ms: int = 10_000
    """How long a pull at the end of a shard waits for more."""
    timeout_ms: int = 30_000
    """How long gateways may be away before a reader fails."""
    skips_freed: bool = False
    """Go on, and count it, where records were freed before they were read; else `RecordsFreed`."""


class _Item(msgspec.Struct):
    """What a shard's task hands over."""

    shard: int
    next: Position
    batch: PulledBatch | None = None
    error: RaftwoodError | None = None
    is_last: bool = False


class AsyncReader:
    """Made by `AsyncLogHubClient.reader`; `close` it when done, or use `async with`."""

    def __init__(
        self,
        gateways: Gateways,
        *,
        project: str,
        logstore: str,
        shard: int | None = None,
        start: Start = "begin",
        follow: bool = False,
        group: str | None = None,
        settings: ReaderSettings | None = None,
    ) -> None:
        self.settings = settings or ReaderSettings()
        self._gateways = gateways
        self._stream = StreamRequest(project, logstore)
        self._shard = shard
        self._start = start
        self._follow = follow
        self._checkpoints = (
            None if group is None else ReaderCheckpoints(gateways, project, logstore, group)
        )
        self._queue: deque[_Item] = deque()
        self._queued_bytes = 0
        self._records: deque[LogRecord] = deque()
        self._record_batch: PulledBatch | None = None
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._ends: dict[int, Position] = {}
        """Where a reader that does not follow stops."""
        self._done: set[int] = set()
        self._shards_at_start: list[Shard] = []
        self._error: RaftwoodError | None = None
        self._is_started = False
        self._is_closed = False
        self.positions: dict[int, Position] = {}
        """Of each shard, behind the batches that were handed out whole."""
        self.freed = 0
        """How often records were gone before they were read."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._is_closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        self._changed.set()

    # Out

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LogRecord:
        while not self._records:
            batch = await self.take_batch()
            if batch is None:
                raise StopAsyncIteration
            self._records.extend(batch.records())
            self._record_batch = batch
            if not self._records:
                self.note(batch)
        record = self._records.popleft()
        if not self._records:
            assert self._record_batch is not None
            self.note(self._record_batch)
        return record

    def batches(self) -> "Batches":
        """Batches as they were stored, from the next one on."""
        return Batches(self)

    async def next_batch(self) -> PulledBatch | None:
        """The next one as it was stored; None where nothing follows."""
        batch = await self.take_batch()
        if batch is not None:
            self.note(batch)
        return batch

    def note(self, batch: PulledBatch) -> None:
        """A batch that was taken is handed out whole."""
        self.positions[batch.shard] = batch.next

    async def take_batch(self) -> PulledBatch | None:
        """As `next_batch`, for who calls `note` later."""
        if not self._is_started:
            await self._begin()
            self._is_started = True
        while True:
            while self._queue:
                item = self._queue[0]
                if item.is_last and not self._is_closed:
                    # It stays until this is done: whoever waits may give up, and come again.
                    await self._shard_done(item)
                self._queue.popleft()
                if item.error is not None:
                    self._error = item.error
                    await self.close()
                if item.is_last:
                    continue
                if item.batch is None:
                    self.positions[item.shard] = item.next
                else:
                    self._queued_bytes -= len(item.batch.data)
                    self._has_room.set()
                    return item.batch
            if self._error is not None:
                raise type(self._error)(self._error.message)
            if not self._tasks or self._is_closed:
                return None
            self._changed.clear()
            await self._changed.wait()

    async def to_arrow(
        self, *, records_max: int = TABLE_RECORDS_MAX, bytes_max: int = TABLE_BYTES_MAX
    ) -> "pyarrow.Table":
        """What follows, up to the batch that reaches a bound; again, what follows then."""
        if self._follow:
            raise InvalidInput("a reader that follows has no end: make one without follow")
        tables: list[Any] = []
        records = size = 0
        async for batch in self.batches():
            table = batch.to_arrow()
            tables.append(table)
            records += table.num_rows
            size += table.nbytes
            if records >= records_max or size >= bytes_max:
                break
        return joined_tables(tables)

    async def to_pandas(
        self, *, records_max: int = TABLE_RECORDS_MAX, bytes_max: int = TABLE_BYTES_MAX
    ) -> "pandas.DataFrame":
        _library("pandas")
        table = await self.to_arrow(records_max=records_max, bytes_max=bytes_max)
        return table.to_pandas()

    async def to_polars(
        self, *, records_max: int = TABLE_RECORDS_MAX, bytes_max: int = TABLE_BYTES_MAX
    ) -> "polars.DataFrame":
        library = _library("polars")
        table = await self.to_arrow(records_max=records_max, bytes_max=bytes_max)
        frame: polars.DataFrame = library.from_arrow(table)
        return frame

    async def commit(self) -> None:
        """Note for the group that what was handed out so far is dealt with.

        A batch counts with its last record: who begins there again meets the first ones twice.
        """
        if self._checkpoints is None:
            raise InvalidInput("a reader without a group has nothing to commit: give it one")
        await self._checkpoints.commit(self.positions)

    # Shards

    async def _begin(self) -> None:
        shards = await self._shards()
        if self._shard is not None:
            shards = [each for each in shards if each.id == self._shard]
            if not shards:
                raise ShardNotFound(
                    f"logstore {self._stream.logstore} has no shard {self._shard}: list its shards"
                )
        known = {} if self._checkpoints is None else await self._checkpoints.load()
        for shard in shards:
            self.positions[shard.id] = await self._first_position(shard, known)
            if not self._follow:
                self._ends[shard.id] = await self._cursor(shard.id, "end")
        if self._checkpoints is not None:
            # From now on what is not read yet is not freed.
            await self._checkpoints.commit(self.positions)
        self._shards_at_start = shards
        self._start_shards(shards)

    async def _first_position(self, shard: Shard, known: Mapping[int, Position]) -> Position:
        if shard.id in known:
            return known[shard.id]
        if known:
            return await self._cursor(shard.id, "begin")  # it came after the group's last visit
        start = self._start
        if isinstance(start, Mapping):
            if shard.id in start:
                return Position(start[shard.id])
            return await self._cursor(shard.id, "begin")
        return await self._cursor(shard.id, start)

    async def _shards(self) -> list[Shard]:
        return await self._gateways.ask(SHARDS, self._stream, timeout_ms=self.settings.timeout_ms)

    async def _cursor(self, shard: int, at: str | int) -> Position:
        request = CursorRequest(self._stream.project, self._stream.logstore, shard, at)
        found = await self._gateways.ask(CURSOR, request, timeout_ms=self.settings.timeout_ms)
        return position_from_bytes(found)

    def _start_shards(self, shards: list[Shard]) -> None:
        started = {*self._tasks, *self._done}
        for shard in startable(shards, started=started, done=self._done):
            loop = asyncio.get_running_loop()
            self._tasks[shard.id] = loop.create_task(
                self._read(shard.id, self.positions[shard.id], self._ends.get(shard.id))
            )

    async def _shard_done(self, item: _Item) -> None:
        """A shard was read to its end: its children may begin."""
        self.positions[item.shard] = max(self.positions[item.shard], item.next)
        if item.shard in self._tasks:
            await asyncio.wait([self._tasks[item.shard]])
        if self._shard is None:
            shards = await self._shards() if self._follow else self._shards_at_start
            for shard in shards:
                if shard.id not in self.positions:
                    self.positions[shard.id] = await self._cursor(shard.id, "begin")
            self._done.add(item.shard)
            self._start_shards(shards)
        self._tasks.pop(item.shard, None)

    # One shard

    async def _read(self, shard: int, position: Position, end: Position | None) -> None:
        try:
            while end is None or position < end:
                pulled = await self._pull(shard, position, is_waiting=end is None)
                if pulled.first > position:
                    self._note_freed(shard, position, pulled.first)
                await self._hand_over(shard, pulled, end)
                position = pulled.next
                if pulled.is_ended:
                    break
                if not pulled.batches:
                    # A shard that is just being split answers at once that nothing is there.
                    await asyncio.sleep(_PAUSE_S)
            self._put(_Item(shard, position, is_last=True))
        except ShardNotFound as error:
            if not self.settings.skips_freed:
                self._put(_Item(shard, position, error=error))
                return
            self.freed += 1
            self._put(_Item(shard, position, is_last=True))
        except RaftwoodError as error:
            self._put(_Item(shard, position, error=error))

    async def _pull(self, shard: int, position: Position, *, is_waiting: bool) -> Pulled:
        settings = self.settings
        wait_ms = settings.wait_ms if is_waiting else 0
        request = PullRequest(
            self._stream.project,
            self._stream.logstore,
            shard,
            position_to_bytes(position),
            settings.pull_batches_max,
            settings.pull_bytes_max,
            wait_ms,
        )
        payload = await self._gateways.call(
            PULL,
            encode_pull(request),
            timeout_ms=settings.timeout_ms,
            attempt_ms=wait_ms + _RETRY_MS,
            turn=shard,
        )
        return decode_pulled(payload)

    def _note_freed(self, shard: int, position: Position, first: Position) -> None:
        if not self.settings.skips_freed:
            raise RecordsFreed(
                f"shard {shard} was truncated: it begins at {first}, and {position} was to be read "
                "next: begin there, register the reader as a group, or let it skip what is freed"
            )
        self.freed += 1

    async def _hand_over(self, shard: int, pulled: Pulled, end: Position | None) -> None:
        batches = pulled.batches
        for place, stored in enumerate(batches):
            if end is not None and stored.position >= end:
                break
            is_last = place + 1 == len(batches)
            following = pulled.next if is_last else batches[place + 1].position
            batch = PulledBatch(shard, stored.position, following, stored.data)
            self._queued_bytes += len(stored.data)
            self._put(_Item(shard, following, batch))
        if not batches:
            self._note_nothing(shard, pulled.next)
        while self._queued_bytes >= self.settings.prefetch_bytes_max:
            self._has_room.clear()
            await self._has_room.wait()

    def _note_nothing(self, shard: int, following: Position) -> None:
        last = self._queue[-1] if self._queue else None
        if last is not None and last.shard == shard and last.batch is None:
            last.next = following  # nobody has taken it yet, and one is enough
        else:
            self._put(_Item(shard, following))

    def _put(self, item: _Item) -> None:
        self._queue.append(item)
        self._changed.set()


def _library(name: str) -> Any:
    """One that this package does not need by itself."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(f"{name} is not installed: pip install {name}") from error


class Batches:
    """A reader's batches, as an iterator."""

    def __init__(self, reader: AsyncReader) -> None:
        self._reader = reader

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PulledBatch:
        batch = await self._reader.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch
