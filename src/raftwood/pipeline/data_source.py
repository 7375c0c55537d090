"""`LogHubDataSource`: what Spark knows as the format `loghub`.

spark.read.format("loghub").options(**access).load("web/access")
"""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from raftwood.pipeline.options import source_options
from raftwood.pipeline.schema import log_schema, projection_of
from raftwood.pipeline.source.batch_reader import BatchReader
from raftwood.pipeline.source.stream_reader import StreamReader


class LogHubDataSource(DataSource):
    """A logstore to read from or to write to."""

    @classmethod
    def name(cls) -> str:
        return "loghub"

    def schema(self) -> StructType:
        return log_schema(includes_headers=source_options(self.options).includes_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(source_options(self.options), projection_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's)
        return StreamReader(source_options(self.options), projection_of(schema))
