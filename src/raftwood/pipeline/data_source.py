"""The Spark formats `loghub` and `zeppelin`.

    spark.read.format("loghub").options(**access).load("web/access")
    frame.writeStream.format("loghub").options(**access).start("web/errors")
    frame.writeStream.format("zeppelin").options(**access, key="user:{id}", ttlSeconds=3600).start()

Spark loads this file in every process that looks for a format's name, so readers and writers are
imported on first use.
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
    from raftwood.pipeline.sink import SinkLayout
    from raftwood.pipeline.zeppelin_options import KvSinkOptions
    from raftwood.pipeline.zeppelin_sink import RowLayout


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
        from raftwood.pipeline import source  # noqa: PLC0415
        from raftwood.pipeline.options import source_options  # noqa: PLC0415
        from raftwood.pipeline.schema import projection_of  # noqa: PLC0415

        options = source_options(self.options)
        if options.pushes_filters:
            return source.FilteringBatchReader(options, projection_of(schema))
        return source.BatchReader(options, projection_of(schema))

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":  # noqa: N802
        from raftwood.pipeline.options import source_options  # noqa: PLC0415
        from raftwood.pipeline.schema import projection_of  # noqa: PLC0415
        from raftwood.pipeline.source import StreamReader  # noqa: PLC0415

        return StreamReader(source_options(self.options), projection_of(schema))

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        from raftwood.pipeline.sink import BatchWriter  # noqa: PLC0415

        options, layout = self._sink(schema, overwrite)
        return BatchWriter(options, layout, uuid4().hex)

    def streamWriter(  # noqa: N802
        self, schema: "StructType", overwrite: bool
    ) -> "DataSourceStreamWriter":
        from raftwood.pipeline.sink import StreamWriter  # noqa: PLC0415

        return StreamWriter(*self._sink(schema, overwrite))

    def _sink(self, schema: "StructType", overwrite: bool) -> "tuple[SinkOptions, SinkLayout]":
        from raftwood.pipeline.options import sink_options  # noqa: PLC0415
        from raftwood.pipeline.sink import layout_of  # noqa: PLC0415

        if overwrite:
            raise InvalidInput("a logstore is only appended to: write with mode append")
        options = sink_options(self.options)
        return options, layout_of(schema, options.key_column)


class ZeppelinDataSource(DataSource):
    """A table to read or to write to."""

    @classmethod
    def name(cls) -> str:
        return "zeppelin"

    def schema(self) -> "StructType":
        from raftwood.pipeline.zeppelin_source import table_schema  # noqa: PLC0415

        return table_schema()

    def reader(self, schema: "StructType") -> "DataSourceReader":
        from raftwood.pipeline import zeppelin_source  # noqa: PLC0415
        from raftwood.pipeline.zeppelin_options import kv_source_options  # noqa: PLC0415

        options = kv_source_options(self.options)
        if options.pushes_filters:
            return zeppelin_source.FilteringTableReader(options, schema)
        return zeppelin_source.TableReader(options, schema)

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        from raftwood.pipeline.zeppelin_sink import KvBatchWriter  # noqa: PLC0415

        options, layout = self._sink(schema, overwrite)
        return KvBatchWriter(options, layout, uuid4().hex)

    def streamWriter(  # noqa: N802
        self, schema: "StructType", overwrite: bool
    ) -> "DataSourceStreamWriter":
        from raftwood.pipeline.zeppelin_sink import KvStreamWriter  # noqa: PLC0415

        return KvStreamWriter(*self._sink(schema, overwrite))

    def _sink(self, schema: "StructType", overwrite: bool) -> "tuple[KvSinkOptions, RowLayout]":
        from raftwood.pipeline.zeppelin_options import kv_sink_options  # noqa: PLC0415
        from raftwood.pipeline.zeppelin_sink import row_layout  # noqa: PLC0415

        if overwrite:
            raise InvalidInput("keys are written one by one: write with mode append")
        options = kv_sink_options(self.options)
        return options, row_layout(schema, options)
