"""Filters that Spark hands down: on shards and positions in planning, on time while reading.

Only those are taken whose meaning is kept exactly; Spark applies the others.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pyarrow
import pyarrow.compute
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from raftwood.base.position import POSITION_MAX, Position, position_from_bytes
from raftwood.pipeline.offsets import ShardRange
from raftwood.pipeline.schema import Column, Projection

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
    """What was taken over."""

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
        """Of a record batch with a column `time`, those rows that fit."""
        for bound in self.times:
            time = batch.column(Column.TIME.value)
            limit = pyarrow.scalar(bound.time_us, time.type)
            batch = batch.filter(_COMPARISONS[bound.kind](time, limit))
        return batch


def take_filters(filters: Iterable[Filter], projection: Projection) -> tuple[Pushed, list[Filter]]:
    """What is taken over, and what is left to Spark."""
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
    # Spark hands down the time of the driver's zone where it says none.
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
