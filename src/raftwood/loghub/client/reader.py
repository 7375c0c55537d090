"""`AsyncReader`: a shard, or all shards of a logstore, as an iterator of records or batches.

    async with client.reader("project", "logstore", follow=True) as reader:
        async for record in reader: ...

Shards are read side by side; what one key was given comes in order, as the children of a shard
that was split or merged are read after all of their parents. A few pulls are read ahead.
"""

from collections import deque
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Self

from raftwood.base.errors import InvalidConfiguration, InvalidInput
from raftwood.base.position import Position
from raftwood.loghub.client.gateways import Gateways
from raftwood.loghub.client.pulled_batches import LogRecord, PulledBatch, joined_tables
from raftwood.loghub.client.pulling import Pulling, ReaderSettings, Start
from raftwood.loghub.client.reader_checkpoints import ReaderCheckpoints
from raftwood.loghub.wire import StreamRequest

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

__all__ = ["AsyncReader", "Batches", "ReaderSettings", "Start"]

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
        self._pulling = Pulling(
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
        """Of each shard, behind the batches that were handed out whole."""
        return self._pulling.positions

    @property
    def freed(self) -> int:
        """How often records were gone before they were read."""
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
        return await self._pulling.take()

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
