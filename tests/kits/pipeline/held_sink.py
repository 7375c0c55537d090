"""The sink as it is, behind a gate; and beside it one that is wrong, to try the check on.

The wrong one stores the same rows in another logstore, and does not know who it was before: what a
task that is run again stores stands there twice.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
from pyspark import TaskContext

from raftwood.base.compression import Codec
from raftwood.pipeline.data_source import LogHubDataSource
from raftwood.pipeline.hub import connected
from raftwood.pipeline.options import SinkOptions
from raftwood.pipeline.sink import SinkLayout, StreamWriter, stored_table
from raftwood.pipeline.sink_sender import ChunkSender, WriteKey
from raftwood.pipeline.spark import TaskCommit
from tests.kits.pipeline.gate import Gate

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter
    from pyspark.sql.types import StructType

FORMAT = "held_loghub"
GATE = "gate"
FORGETFUL = "forgetful"


class HeldSink(LogHubDataSource):
    """With two options more: the gate's folder, and the logstore of the sink that is wrong."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._gate = self.options.pop(GATE)
        self._forgetful = self.options.pop(FORGETFUL)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(  # noqa: N802 (Spark's name)
        self, schema: "StructType", overwrite: bool
    ) -> "DataSourceStreamWriter":
        options, layout = self._sink(schema, overwrite)
        return HeldWriter(options, layout, gate=self._gate, forgetful=self._forgetful)


class HeldWriter(StreamWriter):
    """Takes a task's rows as far as the gate lets them."""

    def __init__(
        self, options: SinkOptions, layout: SinkLayout, *, gate: str, forgetful: str
    ) -> None:
        super().__init__(options, layout)
        self._gate = gate
        self._forgetful = msgspec.structs.replace(options.access, logstore=forgetful)

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        return super().write(self._held(iterator))

    def _held(self, batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert batch is not None
        gate = Gate(self._gate)
        task = gate.begin(
            batch=int(batch), partition=context.partitionId(), attempt=context.attemptNumber()
        )
        key = WriteKey(uuid4().hex, 0, 0)
        wrong = ChunkSender(connected(self._forgetful), self._forgetful, key, Codec.LZ4)
        for chunk, rows in enumerate(batches):
            gate.wait(task, chunk)
            wrong.send(stored_table(rows, self._layout), None)
            wrong.finish()
            yield rows
