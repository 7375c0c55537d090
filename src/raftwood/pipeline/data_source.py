"""`LogHubDataSource`: what Spark knows as the format `loghub`.

spark.read.format("loghub").options(**access).load("web/access")
"""

from uuid import uuid4

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from raftwood.base.errors import InvalidInput
from raftwood.pipeline.options import sink_options, source_options
from raftwood.pipeline.schema import log_schema, projection_of
from raftwood.pipeline.sink.rows_in import layout_of
from raftwood.pipeline.sink.writers import BatchWriter, StreamWriter
from raftwood.pipeline.source.batch_reader import BatchReader, FilteringBatchReader
from raftwood.pipeline.source.stream_reader import StreamReader


class LogHubDataSource(DataSource):
    """A logstore to read from or to write to."""

    @classmethod
    def name(cls) -> str:
        return "loghub"

    def schema(self) -> StructType:
        return log_schema(includes_headers=source_options(self.options).includes_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = source_options(self.options)
        kind = FilteringBatchReader if options.pushes_filters else BatchReader
        return kind(options, projection_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's)
        return StreamReader(source_options(self.options), projection_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise InvalidInput("a logstore is only appended to: write with mode('append')")
        options = sink_options(self.options)
        return BatchWriter(options, layout_of(schema, options.key_column), uuid4().hex)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        if overwrite:
            raise InvalidInput("a logstore is only appended to: use outputMode('append')")
        options = sink_options(self.options)
        return StreamWriter(options, layout_of(schema, options.key_column))
