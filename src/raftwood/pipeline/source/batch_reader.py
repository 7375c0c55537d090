"""A logstore as it is now, for a batch query."""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from raftwood.base.position import Position
from raftwood.pipeline.columns import Projection
from raftwood.pipeline.hub import Hub
from raftwood.pipeline.options import SourceOptions
from raftwood.pipeline.source.partitions import RangePartition
from raftwood.pipeline.source.range_reader import ShardRange, read_range


class BatchReader(DataSourceReader):
    """Planned on the driver, read by tasks."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self._options = options
        self._projection = projection

    def partitions(self) -> Sequence[InputPartition]:
        with Hub.connect(self._options.access) as hub:
            details = hub.details()
        return [RangePartition(ShardRange(d.shard.id, Position(int(d.first)), Position(int(d.next)))) for d in details]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, RangePartition):
            yield from read_range(self._options, self._projection, partition.range)
