"""Makes Spark know the format `zeppelin` by itself: it looks for packages named `pyspark_*`.

Kept tiny: one such package that fails to load breaks every data source of Spark.
"""

from raftwood.pipeline.data_source import ZeppelinDataSource as DefaultSource

__all__ = ["DefaultSource"]
