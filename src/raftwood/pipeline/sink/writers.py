"""What Spark calls to write: a task's rows go into shards, and are durable when it ends.

A streaming query writes each micro-batch once: the same query, micro-batch and partition again
stores nothing twice. A batch write does so for the tasks of one run, and with `txnAppId` and
`txnVersion` for whole runs.
"""

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from raftwood.base.codecs import Codec
from raftwood.pipeline.hub import connected
from raftwood.pipeline.options import SinkOptions
from raftwood.pipeline.sink.routing import WriteKey
from raftwood.pipeline.sink.rows_in import Layout, TooWide, stored_table
from raftwood.pipeline.sink.sending import Sender
from raftwood.pipeline.sink.tasks import Written, micro_batch, partition

CHUNK_BYTES_MAX: Final = 2 << 20


def write_rows(
    options: SinkOptions, layout: Layout, key: WriteKey, batches: Iterator[Any]
) -> Written:
    """All rows of a task."""
    sender = Sender(
        connected(options.access), options.access, key, Codec[options.compression.upper()]
    )
    for batch in batches:
        for chunk, table in _chunks(batch, layout):
            keys = None if layout.key_column is None else chunk.column(layout.key_column)
            sender.send(table, keys)
    sender.finish()
    return Written(sender.rows)


def _chunks(batch: Any, layout: Layout) -> Iterator[tuple[Any, Any]]:
    """Slices that a logstore takes, and as they are stored; where they are cut depends on the rows
    alone.
    """
    rows = batch.num_rows
    if not rows:
        return
    if batch.nbytes <= CHUNK_BYTES_MAX or rows == 1:
        try:
            table = stored_table(batch, layout)
        except TooWide:
            pass
        else:
            yield batch, table
            return
    half = rows // 2
    yield from _chunks(batch.slice(0, half), layout)
    yield from _chunks(batch.slice(half), layout)


class BatchWriter(DataSourceArrowWriter):
    """One write of a DataFrame."""

    def __init__(self, options: SinkOptions, layout: Layout, run: str) -> None:
        self._options = options
        self._layout = layout
        self._run = run

    def write(self, iterator: Iterator[Any]) -> Written:
        transaction = self._options.transaction
        writer, version = (f"run-{self._run}", 0) if transaction is None else transaction
        key = WriteKey(writer, version, partition())
        return write_rows(self._options, self._layout, key, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """One streaming query."""

    def __init__(self, options: SinkOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout

    def write(self, iterator: Iterator[Any]) -> Written:
        key = WriteKey(*micro_batch(), partition())
        return write_rows(self._options, self._layout, key, iterator)
