"""`ZeppelinDataSource`: what Spark knows as the format `zeppelin`.

    spark.read.format("zeppelin").options(**access).load()
    frame.writeStream.format("zeppelin").options(**access, key="user:{id}", ttlSeconds=3600).start()

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
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from raftwood.pipeline.kv.options import KvSinkOptions
    from raftwood.pipeline.kv.rows_out import RowLayout


class ZeppelinDataSource(DataSource):
    """A table to read or to write to."""

    @classmethod
    def name(cls) -> str:
        return "zeppelin"

    def schema(self) -> "StructType":
        from raftwood.pipeline.kv.table_reader import table_schema  # noqa: PLC0415

        return table_schema()

    def reader(self, schema: "StructType") -> "DataSourceReader":
        from raftwood.pipeline.kv import table_reader  # noqa: PLC0415
        from raftwood.pipeline.kv.options import kv_source_options  # noqa: PLC0415

        options = kv_source_options(self.options)
        if options.pushes_filters:
            return table_reader.FilteringTableReader(options, schema)
        return table_reader.TableReader(options, schema)

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        from raftwood.pipeline.kv.writers import KvBatchWriter  # noqa: PLC0415

        options, layout = self._sink(schema, overwrite)
        return KvBatchWriter(options, layout, uuid4().hex)

    def streamWriter(  # noqa: N802
        self, schema: "StructType", overwrite: bool
    ) -> "DataSourceStreamWriter":
        from raftwood.pipeline.kv.writers import KvStreamWriter  # noqa: PLC0415

        return KvStreamWriter(*self._sink(schema, overwrite))

    def _sink(self, schema: "StructType", overwrite: bool) -> "tuple[KvSinkOptions, RowLayout]":
        from raftwood.pipeline.kv.options import kv_sink_options  # noqa: PLC0415
        from raftwood.pipeline.kv.rows_out import row_layout  # noqa: PLC0415

        if overwrite:
            raise InvalidInput("keys are written one by one: write with mode append")
        options = kv_sink_options(self.options)
        return options, row_layout(schema, options)
