"""A logstore as it is now, for a batch query."""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from raftwood.pipeline.columns import Projection
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
from raftwood.pipeline.source.partitions import RangePartition
from raftwood.pipeline.source.planning import placed, shard_views, starting_positions
from raftwood.pipeline.source.range_reader import read_range


class BatchReader(DataSourceReader):
    """Planned on the driver, read by tasks."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self.options = options
        self.projection = projection

    def partitions(self) -> Sequence[InputPartition]:
        return [
            RangePartition(each) for each in divided(self.planned(), self.options.partitions_min)
        ]

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
            yield from read_range(self.options, self.projection, partition.range)
