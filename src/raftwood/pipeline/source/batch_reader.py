"""A logstore as it is now, for a batch query."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from raftwood.pipeline.hub import Hub
from raftwood.pipeline.offsets import (
    Offset,
    ShardRange,
    check_losses,
    divided,
    losses,
    ranges,
)
from raftwood.pipeline.options import SourceOptions
from raftwood.pipeline.schema import Projection
from raftwood.pipeline.source.filters import Pushed, take_filters
from raftwood.pipeline.source.planning import placed, shard_views, starting_positions
from raftwood.pipeline.source.range_reader import RangePartition, read_range


class BatchReader(DataSourceReader):
    """Planned on the driver, read by tasks."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self.options = options
        self.projection = projection
        self.pushed = Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        wanted = self.pushed.kept(self.planned())
        return [RangePartition(each) for each in divided(wanted, self.options.partitions_min)]

    def planned(self) -> list[ShardRange]:
        """All shards side by side: a batch query has no order."""
        options = self.options
        with Hub.connect(options.access) as hub:
            views = shard_views(hub.details())
            starts = starting_positions(hub, views, options)
        start = Offset(positions={each.id: starts.get(each.id, each.first) for each in views})
        check_losses(losses(start, views), fails=options.fails_on_data_loss)
        ends = placed("endingOffsets", views, options.ending)
        end = Offset(positions={each.id: ends.get(each.id, each.next) for each in views})
        return ranges(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, RangePartition):  # Spark makes one of its own where there is none
            for batch in read_range(self.options, self.projection, partition.range):
                rows = self.pushed.rows(batch)
                if rows.num_rows:
                    yield rows


class FilteringBatchReader(BatchReader):
    """As asked for by `pushFilters`: Spark refuses a reader that takes filters where its setting
    for that is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's)
        self.pushed, left = take_filters(filters, self.projection)
        return left
