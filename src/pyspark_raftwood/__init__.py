"""Makes Spark know the source and sink `loghub` by itself: it looks for packages named `pyspark_*`.

Kept tiny: one such package that fails to load breaks every data source of Spark.
"""

from raftwood.pipeline.data_source import LogHubDataSource as DefaultSource

__all__ = ["DefaultSource"]
