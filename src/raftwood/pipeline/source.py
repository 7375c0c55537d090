"""Logstores as DataFrames: the readers that Spark calls, for batch and streaming queries.

Spark keeps one reader on the driver for planning, and pickles another one for the tasks, so all
that tasks need is in their partitions. Of the filters that Spark pushes down, the source accepts
only those that it applies exactly: on shards and positions in planning, on time while reading.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pyarrow
import pyarrow.compute
from msgspec.structs import replace
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from raftwood.base.errors import InvalidConfiguration
from raftwood.base.position import POSITION_MAX, Position, position_from_bytes
from raftwood.pipeline.columns import Column, Projection
from raftwood.pipeline.hub import Hub, connected, disconnect
from raftwood.pipeline.offsets import (
    ShardExtent,
    ShardRange,
    StreamOffset,
    advanced,
    available,
    check_losses,
    divided,
    initial_offset,
    losses,
    ranges,
)
from raftwood.pipeline.options import LATEST, SourceOptions
from raftwood.pipeline.planning import QuerySpace, placed
from raftwood.pipeline.range_reader import read_range


class RangePartition(InputPartition):
    """A range in the form that Spark passes to a task."""

    def __init__(self, wanted: ShardRange) -> None:
        super().__init__(wanted)
        self.range = wanted


_COMPARISONS: Final[dict[type[Filter], Callable[[Any, Any], Any]]] = {
    EqualTo: pyarrow.compute.equal,
    GreaterThan: pyarrow.compute.greater,
    GreaterThanOrEqual: pyarrow.compute.greater_equal,
    LessThan: pyarrow.compute.less,
    LessThanOrEqual: pyarrow.compute.less_equal,
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class TimeBound(msgspec.Struct, frozen=True):
    """One comparison with a record's time, in microseconds since 1970."""

    kind: type[Filter]
    time_us: int


class Pushed(msgspec.Struct):
    """The filters that the source applies."""

    shards: frozenset[int] | None = None
    low: Position = Position(0)
    high: Position = POSITION_MAX + 1  # type: ignore[assignment]
    """Positions from `low` on, below `high`."""
    times: tuple[TimeBound, ...] = ()

    def kept(self, ranges: Iterable[ShardRange]) -> list[ShardRange]:
        found = []
        for each in ranges:
            begin, end = max(each.begin, self.low), min(each.end, self.high)
            if begin < end and (self.shards is None or each.shard in self.shards):
                found.append(ShardRange(each.shard, begin, end))
        return found

    def rows(self, batch: Any) -> Any:
        """Returns the rows of a record batch, which has a column `time`, that fit."""
        for bound in self.times:
            time = batch.column(Column.TIME.value)
            limit = pyarrow.scalar(bound.time_us, time.type)
            batch = batch.filter(_COMPARISONS[bound.kind](time, limit))
        return batch


def take_filters(filters: Iterable[Filter], projection: Projection) -> tuple[Pushed, list[Filter]]:
    """Returns the filters that the source applies, and those left to Spark."""
    columns = {each.name: each.column for each in projection.fields if each.column is not None}
    pushed, left = Pushed(), []
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        column = columns.get(path[0]) if len(path) == 1 else None
        if column is None or not _take(pushed, column, each):
            left.append(each)
    return pushed, left


def _take(pushed: Pushed, column: Column, given: Filter) -> bool:
    if column is Column.SHARD:
        return _take_shard(pushed, given)
    if column is Column.POSITION:
        return _take_position(pushed, given)
    if column is Column.TIME and type(given) in _COMPARISONS:
        value = given.value  # type: ignore[attr-defined]
        if isinstance(value, datetime):
            pushed.times += (TimeBound(type(given), _microseconds(value)),)
            return True
    return False


def _microseconds(value: datetime) -> int:
    # Spark passes times in the driver's zone if they have none.
    since = value.astimezone(UTC) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _take_shard(pushed: Pushed, given: Filter) -> bool:
    if isinstance(given, IsNotNull):
        return True
    if isinstance(given, EqualTo):
        wanted = {given.value}
    elif isinstance(given, In):
        wanted = set(given.value)
    else:
        return False
    pushed.shards = frozenset(wanted if pushed.shards is None else wanted & pushed.shards)
    return True


def _take_position(pushed: Pushed, given: Filter) -> bool:
    if isinstance(given, IsNotNull):
        return True
    value = getattr(given, "value", None)
    if not isinstance(value, bytes | bytearray) or len(value) != 16:
        return False
    position = position_from_bytes(bytes(value))
    following = Position(position + 1)
    if isinstance(given, EqualTo | GreaterThanOrEqual):
        pushed.low = max(pushed.low, position)
    elif isinstance(given, GreaterThan):
        pushed.low = max(pushed.low, following)
    if isinstance(given, EqualTo | LessThanOrEqual):
        pushed.high = min(pushed.high, following)
    elif isinstance(given, LessThan):
        pushed.high = min(pushed.high, position)
    return type(given) in _COMPARISONS


class BatchReader(DataSourceReader):
    """Reads a batch query: planned on the driver, read by tasks."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self.options = options
        self.projection = projection
        self.pushed = Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        wanted = self.pushed.kept(self.planned())
        return [RangePartition(each) for each in divided(wanted, self.options.partitions_min)]

    def planned(self) -> list[ShardRange]:
        """Returns all shards side by side: a batch query has no order."""
        options = self.options
        with Hub.connect(options.access) as hub:
            space = QuerySpace(options)
            views = space.views(hub)
            starts = space.starts(hub, views)
        start = StreamOffset(positions={each.id: starts.get(each.id, each.first) for each in views})
        check_losses(losses(start, views), fails=options.fails_on_data_loss)
        ends = placed("endingOffsets", views, options.ending)
        end = StreamOffset(positions={each.id: ends.get(each.id, each.next) for each in views})
        return ranges(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, RangePartition):  # without partitions Spark makes one of its own
            for batch in read_range(self.options, self.projection, partition.range):
                rows = self.pushed.rows(batch)
                if rows.num_rows:
                    yield rows


class FilteringBatchReader(BatchReader):
    """A reader with `pushFilters`. Spark refuses one if its setting for that is off, so it is a
    class of its own.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's)
        self.pushed, left = take_filters(filters, self.projection)
        return left


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a streaming query: planned on the driver, read by tasks."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        if options.ending != LATEST:
            raise InvalidConfiguration(
                "endingOffsets is for batch queries: a streaming one ends with its trigger"
            )
        self._options = options
        self._projection = projection
        self._space = QuerySpace(options)
        self._caps: dict[int, Position] | None = None
        """Where a query with the trigger AvailableNow ends."""
        self._views: list[ShardExtent] = []

    def _hub(self) -> Hub:
        return connected(self._options.access)

    def _looked_up(self) -> list[ShardExtent]:
        self._views = self._space.views(self._hub())
        return self._views

    # Planning

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name, as those below)
        views = self._looked_up()
        starts = self._space.starts(self._hub(), views)
        return initial_offset(views, starts).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._caps = {each.id: each.next for each in self._looked_up()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows_max = self._options.rows_per_trigger_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Returns the end of the next micro-batch; `start` itself if there is nothing to read."""
        begin, views, caps = StreamOffset.from_json(start), self._looked_up(), self._caps
        check_losses(losses(begin, views, caps=caps), fails=self._options.fails_on_data_loss)
        wanted = available(begin, views, caps=caps)
        if isinstance(limit, ReadMaxRows):
            ends = self._space.admitted(self._hub(), wanted, limit.max_rows)
        else:
            ends = {shard: each.end for shard, each in wanted.items()}
        end = advanced(begin, views, ends, caps=caps)
        if end != begin:
            end = replace(end, partitions_min=self._options.partitions_min)
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Returns where the logstore ended at the last look, to show the lag."""
        if not self._views:
            return None
        return StreamOffset(positions={each.id: each.next for each in self._views}).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin = StreamOffset.from_json(start)
        if self._options.group is not None:
            # All before it is processed: Spark plans a micro-batch after the one before has ended.
            self._hub().note(self._options.group, begin.positions)
        until = StreamOffset.from_json(end)
        return [
            RangePartition(each) for each in divided(ranges(begin, until), until.partitions_min)
        ]

    def stop(self) -> None:
        disconnect()

    # Reading

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, RangePartition)
        return read_range(self._options, self._projection, partition.range)
