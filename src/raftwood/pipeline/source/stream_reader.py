"""A logstore as it grows, for a streaming query.

Spark keeps one reader on the driver for planning, and pickles another one for the tasks, so what
tasks need is in their partitions.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from raftwood.base.errors import InvalidConfiguration
from raftwood.base.position import Position
from raftwood.pipeline.columns import Projection
from raftwood.pipeline.hub import Hub, connected, disconnect
from raftwood.pipeline.offsets import (
    Offset,
    ShardView,
    advanced,
    available,
    check_losses,
    divided,
    initial_offset,
    losses,
    ranges,
)
from raftwood.pipeline.options import LATEST, SourceOptions
from raftwood.pipeline.source.partitions import RangePartition
from raftwood.pipeline.source.range_reader import read_range
from raftwood.pipeline.source.space import Space


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Planned on the driver, read by tasks."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        if options.ending != LATEST:
            raise InvalidConfiguration(
                "endingOffsets is for batch queries: a streaming one ends with its trigger"
            )
        self._options = options
        self._projection = projection
        self._space = Space(options)
        self._caps: dict[int, Position] | None = None
        """Where a query that reads what is there now comes to its end."""
        self._views: list[ShardView] = []

    def _hub(self) -> Hub:
        return connected(self._options.access)

    def _looked_up(self) -> list[ShardView]:
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
        """The end of the next micro-batch; `start` itself where nothing is to be done."""
        begin, views, caps = Offset.from_json(start), self._looked_up(), self._caps
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
        """Where the logstore ended when it was last looked at, for who shows the lag."""
        if not self._views:
            return None
        return Offset(positions={each.id: each.next for each in self._views}).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin = Offset.from_json(start)
        if self._options.group is not None:
            # All before it is done: Spark plans a micro-batch after the one before has ended.
            self._hub().note(self._options.group, begin.positions)
        until = Offset.from_json(end)
        return [
            RangePartition(each) for each in divided(ranges(begin, until), until.partitions_min)
        ]

    def stop(self) -> None:
        disconnect()

    # Reading

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, RangePartition)
        return read_range(self._options, self._projection, partition.range)
