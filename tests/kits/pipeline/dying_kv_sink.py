"""The sink for tables as it is, but for one micro-batch: its tasks die between chunks at first."""

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from raftwood.pipeline.data_source import ZeppelinDataSource
from raftwood.pipeline.spark import TaskCommit, micro_batch
from raftwood.pipeline.zeppelin_sink import KvStreamWriter
from raftwood.zeppelin.client import Kv
from raftwood.zeppelin.client.bulk import NamedRows

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter
    from pyspark.sql.types import StructType

FORMAT = "dying_zeppelin"
DIES_IN = 1
CHUNKS_WRITTEN = 2


class DyingSink(ZeppelinDataSource):
    """What Spark knows as its own format."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(  # noqa: N802
        self, schema: "StructType", overwrite: bool
    ) -> "DataSourceStreamWriter":
        return DyingWriter(*self._sink(schema, overwrite))


class DyingWriter(KvStreamWriter):
    """Its process ends as if it were killed."""

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        task = TaskContext.get()
        assert task is not None
        if task.attemptNumber() or micro_batch()[1] != DIES_IN:
            return super().write(iterator)
        whole = Kv.write_named

        def some(kv: Kv, rows: Iterable[NamedRows], **options: Any) -> None:
            whole(kv, list(islice(rows, CHUNKS_WRITTEN)), **options)
            os._exit(1)

        Kv.write_named = some  # type: ignore[method-assign,assignment]
        return super().write(iterator)
