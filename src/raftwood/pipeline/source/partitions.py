"""What Spark hands to a task: a range of a shard's positions."""

from pyspark.sql.datasource import InputPartition

from raftwood.pipeline.offsets import ShardRange


class RangePartition(InputPartition):
    """A range as Spark hands it to a task."""

    def __init__(self, wanted: ShardRange) -> None:
        super().__init__(wanted)
        self.range = wanted
