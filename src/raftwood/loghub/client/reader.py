"""`AsyncReader`: a shard, or all shards of a logstore, as an iterator of records or batches.

    async with client.reader("project", "logstore", follow=True) as reader:
        async for record in reader: ...

The reader reads shards side by side. Records of one key come in order: the children of a shard that
was split or merged are read after all of their parents. `ShardFetcher` pulls a little ahead, into
one queue. A shard's children begin when all of it is in the queue, so the queue has parents first.
Tasks do the pulling, so a caller may stop waiting for a batch at any moment.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Coroutine, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import msgspec

from raftwood.base.errors import InvalidConfiguration, InvalidInput, RaftwoodError
from raftwood.base.position import Position, position_from_bytes
from raftwood.base.text import MILLISECONDS, parse_quantity
from raftwood.loghub import json_records
from raftwood.loghub.client.gateways import Gateways
from raftwood.loghub.client.pulled_batches import (
    LogRecord,
    PulledBatch,
    batches_of,
    joined_tables,
    pull,
)
from raftwood.loghub.client.reader_checkpoints import ReaderCheckpoints
from raftwood.loghub.errors import RecordsFreed, ShardNotFound
from raftwood.loghub.model import Shard
from raftwood.loghub.wire import CURSOR, SHARDS, CursorRequest, Pulled, StreamRequest

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


def startable(
    shards: Iterable[Shard], *, started: Collection[int], done: Collection[int]
) -> list[Shard]:
    """Returns the shards whose ancestors are read to the end, or gone; in order of their ids.

    Ancestors are found by their ranges and not by the parents' numbers, because a parent may be
    deleted while its own parent is still to be read.
    """
    known = sorted(shards, key=lambda each: each.id)
    unread = [each for each in known if each.id not in done]
    return [
        shard
        for shard in known
        if shard.id not in started and not any(_is_before(each, shard) for each in unread)
    ]


def _is_before(older: Shard, shard: Shard) -> bool:
    """Whether `older` is an ancestor. At any time each key belongs to one shard, so of two shards
    with a key in common the older one is an ancestor.
    """
    return older.id < shard.id and older.begin < shard.end and shard.begin < older.end


At: TypeAlias = Literal["begin", "end"] | int
"""The first record of a shard, behind its last one, or the first one received from a time on, in
seconds since 1970."""
Start: TypeAlias = At | Mapping[int, int]
"""Where to begin: for all shards alike, or at positions by shard."""
_AGO_UNITS: Final = {**{unit: ms for unit, ms in MILLISECONDS.items() if unit}, "m": 60_000}


def start_at(given: str | datetime | timedelta, *, now_s: float) -> At:
    """Where to begin, from what a user writes; a time without a zone is UTC.

    A `timedelta`, and a text such as "15min" or "-15m", is so long before `now_s`.
    """
    if isinstance(given, timedelta):
        return max(0, int(now_s - abs(given.total_seconds())))
    if isinstance(given, datetime):
        aware = given.replace(tzinfo=UTC) if given.tzinfo is None else given
        return max(0, int(aware.timestamp()))
    if given in ("begin", "end"):
        return "begin" if given == "begin" else "end"
    moment_ns = json_records.from_any(given)
    if moment_ns is not None:
        return moment_ns // 1_000_000_000
    try:
        ago_ms = parse_quantity(given.removeprefix("-"), _AGO_UNITS)
    except ValueError as error:
        raise InvalidInput(
            f"{given[:60]!r} is no place to begin: give begin, end, a time as "
            "2026-01-31T10:00:00Z, seconds since 1970, or how long ago, as 15min"
        ) from error
    return max(0, int(now_s - ago_ms / 1000))


TURN_BYTES: Final = 128 << 10
"""About as much as one turn of the loop receives."""
_PAUSE_S: Final = 0.005


class ReaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much a reader asks for, and what it does if records were freed."""

    pull_bytes_max: int = 2 << 20
    pull_batches_max: int = 1_000
    prefetch_bytes_max: int = 8 << 20
    """Limit of what is read ahead, over all shards; each shard may exceed it by one pull."""
    wait_ms: int = 10_000
    """How long a pull at the end of a shard waits for more."""
    timeout_ms: int = 30_000
    """How long all gateways may be unreachable before the reader fails."""
    skips_freed: bool = False
    """If records were freed before they were read, count it and go on; else raise `RecordsFreed`.
    """


class _Item(msgspec.Struct):
    """One entry of the queue from a shard's task."""

    shard: int
    next: Position
    batch: PulledBatch | None = None


class ShardFetcher:
    """Reads ahead for one reader; it begins with the first `take`."""

    def __init__(
        self,
        gateways: Gateways,
        stream: StreamRequest,
        settings: ReaderSettings,
        *,
        shard: int | None,
        start: Start,
        follow: bool,
        checkpoints: ReaderCheckpoints | None,
    ) -> None:
        self.settings = settings
        self._gateways = gateways
        self._stream = stream
        self._shard = shard
        self._start = start
        self._follow = follow
        self._checkpoints = checkpoints
        self._queue: deque[_Item] = deque()
        self._queued_bytes = 0
        self._taken_bytes = 0
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._shards: list[Shard] = []
        """The shards, as of the last request for them."""
        self._ends: dict[int, Position] = {}
        """Where a reader that does not follow stops."""
        self._started: set[int] = set()
        self._done: set[int] = set()
        self._error: RaftwoodError | None = None
        self._is_begun = False
        self.positions: dict[int, Position] = {}
        """For each shard, the position behind the last batch that was handed out whole."""
        self.freed = 0

    async def take(self) -> PulledBatch | None:
        """Returns the next batch; None if nothing follows."""
        if not self._is_begun:
            self._is_begun = True
            self._spawn(self._begin())
        # A caller that only takes queued batches would never let the loop receive the next pulls.
        turns, self._taken_bytes = divmod(self._taken_bytes, TURN_BYTES)
        for _ in range(turns):
            await asyncio.sleep(0)
        while True:
            while self._queue:
                item = self._queue.popleft()
                if item.batch is not None:
                    self._queued_bytes -= len(item.batch.data)
                    self._taken_bytes += len(item.batch.data)
                    self._has_room.set()
                    return item.batch
                self.positions[item.shard] = item.next
            if self._error is not None:
                error = self._error
                if not self._started:
                    self._error, self._is_begun = None, False  # another call begins anew
                raise type(error)(error.message)
            if not self._tasks:
                return None
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Tasks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except RaftwoodError as error:
            # What was read before is handed out first; nothing after it.
            self._error = self._error or error
            for task in self._tasks:
                if task is not asyncio.current_task():
                    task.cancel()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        del self._tasks[task]
        self._changed.set()

    async def _begin(self) -> None:
        shards = await self._all_shards()
        if self._shard is not None:
            shards = [each for each in shards if each.id == self._shard]
            if not shards:
                raise ShardNotFound(
                    f"logstore {self._stream.logstore} has no shard {self._shard}: list its shards"
                )
        known = {} if self._checkpoints is None else await self._checkpoints.load()
        found = []
        for shard in shards:
            try:
                first = await self._first_position(shard, known)
                if not self._follow:
                    self._ends[shard.id] = await self._cursor(shard.id, "end")
            except ShardNotFound:
                if self._shard is not None:
                    raise
                continue  # deleted just now: as if the reader had begun a moment later
            self.positions[shard.id] = first
            found.append(shard)
        if self._checkpoints is not None:
            # From now on unread records are not freed.
            await self._checkpoints.commit(self.positions)
        self._shards = found
        self._start_shards()

    def _start_shards(self) -> None:
        for shard in startable(self._shards, started=self._started, done=self._done):
            self._started.add(shard.id)
            self._spawn(self._read(shard.id, self.positions[shard.id], self._ends.get(shard.id)))

    async def _shard_done(self, shard: int) -> None:
        """All of a shard is in the queue: its children may begin."""
        self._done.add(shard)
        if self._follow and self._shard is None:
            shards = await self._all_shards()
            for each in shards:
                if each.id not in self.positions:
                    await self._find_begin(each.id)
            self._shards = [each for each in shards if each.id in self.positions]
        self._start_shards()

    async def _find_begin(self, shard: int) -> None:
        try:
            position = await self._cursor(shard, "begin")
        except ShardNotFound:
            if not self.settings.skips_freed:
                raise
            self.freed += 1  # deleted before it was read
        else:
            self.positions.setdefault(shard, position)

    # Asking

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

    async def _all_shards(self) -> list[Shard]:
        return await self._gateways.ask(SHARDS, self._stream, timeout_ms=self.settings.timeout_ms)

    async def _cursor(self, shard: int, at: str | int) -> Position:
        request = CursorRequest(self._stream.project, self._stream.logstore, shard, at)
        found = await self._gateways.ask(CURSOR, request, timeout_ms=self.settings.timeout_ms)
        return position_from_bytes(found)

    # One shard

    async def _read(self, shard: int, position: Position, end: Position | None) -> None:
        try:
            while end is None or position < end:
                pulled = await self._pull(shard, position, is_waiting=end is None)
                if pulled.first > position:
                    self._note_freed(shard, position, pulled.first)
                await self._hand_over(shard, position, pulled, end)
                position = pulled.next
                if pulled.is_ended:
                    break
                if not pulled.batches:
                    # A shard that is just being split answers an empty pull at once.
                    await asyncio.sleep(_PAUSE_S)
        except ShardNotFound:
            if not self.settings.skips_freed:
                raise
            self.freed += 1
        await self._shard_done(shard)

    async def _pull(self, shard: int, position: Position, *, is_waiting: bool) -> Pulled:
        settings = self.settings
        return await pull(
            self._gateways,
            self._stream,
            shard=shard,
            position=position,
            batches_max=settings.pull_batches_max,
            bytes_max=settings.pull_bytes_max,
            wait_ms=settings.wait_ms if is_waiting else 0,
            timeout_ms=settings.timeout_ms,
        )

    def _note_freed(self, shard: int, position: Position, first: Position) -> None:
        if not self.settings.skips_freed:
            raise RecordsFreed(
                f"shard {shard} was truncated: it begins at {first}, and {position} was to be read "
                "next: begin there, register the reader as a group, or let it skip what is freed"
            )
        self.freed += 1

    async def _hand_over(
        self, shard: int, position: Position, pulled: Pulled, end: Position | None
    ) -> None:
        batches = batches_of(shard, pulled)
        for batch in batches:
            if end is not None and batch.position >= end:
                break
            self._queued_bytes += len(batch.data)
            self._put(_Item(shard, batch.next, batch))
        if not batches and pulled.next > position:
            self._put(_Item(shard, pulled.next))
        while self._queued_bytes >= self.settings.prefetch_bytes_max:
            self._has_room.clear()
            await self._has_room.wait()

    def _put(self, item: _Item) -> None:
        self._queue.append(item)
        self._changed.set()


TABLE_RECORDS_MAX: Final = 1_000_000
TABLE_BYTES_MAX: Final = 256 << 20


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
        self._follow = follow
        self._checkpoints = (
            None if group is None else ReaderCheckpoints(gateways, project, logstore, group)
        )
        self._pulling = ShardFetcher(
            gateways,
            StreamRequest(project, logstore),
            self.settings,
            shard=shard,
            start=start,
            follow=follow,
            checkpoints=self._checkpoints,
        )
        self._records: deque[LogRecord] = deque()
        self._record_batch: PulledBatch | None = None

    @property
    def positions(self) -> dict[int, Position]:
        """Returns for each shard the position behind the batches that were handed out whole."""
        return self._pulling.positions

    @property
    def freed(self) -> int:
        """Returns how often records were freed before they were read."""
        return self._pulling.freed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._pulling.close()

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

    def batches(self) -> "BatchIterator":
        """Iterates over stored batches, from the next one on."""
        return BatchIterator(self)

    async def next_batch(self) -> PulledBatch | None:
        """Returns the next stored batch; None if nothing follows."""
        batch = await self.take_batch()
        if batch is not None:
            self.note(batch)
        return batch

    def note(self, batch: PulledBatch) -> None:
        """Marks a batch of `take_batch` as handed out whole."""
        self.positions[batch.shard] = batch.next

    async def take_batch(self) -> PulledBatch | None:
        """Like `next_batch`, but the caller calls `note` later."""
        return await self._pulling.take()

    async def to_arrow(
        self, *, records_max: int = TABLE_RECORDS_MAX, bytes_max: int = TABLE_BYTES_MAX
    ) -> "pyarrow.Table":
        """Returns what follows, up to the batch that reaches a bound; call again for the rest."""
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
        """Commits for the group what was handed out so far.

        A batch counts with its last record: a reader that begins inside a batch gets its first
        records twice.
        """
        if self._checkpoints is None:
            raise InvalidInput("a reader without a group has nothing to commit: give it one")
        await self._checkpoints.commit(self.positions)


def _library(name: str) -> Any:
    """Imports an optional library, or says how to install it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(f"{name} is not installed: pip install {name}") from error


class BatchIterator:
    """Iterates over a reader's batches."""

    def __init__(self, reader: AsyncReader) -> None:
        self._reader = reader

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PulledBatch:
        batch = await self._reader.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch
