"""`LogHubDataSource`: what Spark knows as the format `loghub`.

    spark.read.format("loghub").options(**access).load("web/access")
    frame.writeStream.format("loghub").options(**access).start("web/errors")

Spark loads this file in every process that only looks for a format's name, so that what reads and
writes is loaded where it is asked for.
"""

from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql.datasource import DataSource

from raftwood.base.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from raftwood.pipeline.options import SinkOptions
    from raftwood.pipeline.sink.rows_in import Layout


class LogHubDataSource(DataSource):
    """A logstore to read from or to write to."""

    @classmethod
    def name(cls) -> str:
        return "loghub"

    def schema(self) -> "StructType":
        from raftwood.pipeline.options import source_options  # noqa: PLC0415
        from raftwood.pipeline.schema import log_schema  # noqa: PLC0415

        return log_schema(includes_headers=source_options(self.options).includes_headers)

    def reader(self, schema: "StructType") -> "DataSourceReader":
        from raftwood.pipeline.options import source_options  # noqa: PLC0415
        from raftwood.pipeline.schema import projection_of  # noqa: PLC0415
        from raftwood.pipeline.source import batch_reader  # noqa: PLC0415

        options = source_options(self.options)
        if options.pushes_filters:
            return batch_reader.FilteringBatchReader(options, projection_of(schema))
        return batch_reader.BatchReader(options, projection_of(schema))

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":  # noqa: N802
        from raftwood.pipeline.options import source_options  # noqa: PLC0415
        from raftwood.pipeline.schema import projection_of  # noqa: PLC0415
        from raftwood.pipeline.source.stream_reader import StreamReader  # noqa: PLC0415

        return StreamReader(source_options(self.options), projection_of(schema))

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        from raftwood.pipeline.sink.writers import BatchWriter  # noqa: PLC0415

        options, layout = self._sink(schema, overwrite)
        return BatchWriter(options, layout, uuid4().hex)

    def streamWriter(  # noqa: N802
        self, schema: "StructType", overwrite: bool
    ) -> "DataSourceStreamWriter":
        from raftwood.pipeline.sink.writers import StreamWriter  # noqa: PLC0415

        return StreamWriter(*self._sink(schema, overwrite))

    def _sink(self, schema: "StructType", overwrite: bool) -> "tuple[SinkOptions, Layout]":
        from raftwood.pipeline.options import sink_options  # noqa: PLC0415
        from raftwood.pipeline.sink.rows_in import layout_of  # noqa: PLC0415

        if overwrite:
            raise InvalidInput("a logstore is only appended to: write with mode append")
        options = sink_options(self.options)
        return options, layout_of(schema, options.key_column)
