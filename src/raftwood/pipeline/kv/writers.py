"""What Spark calls to write to a table: each task's rows are written once, however often it is run.

A task gathers its rows by key, sorts them, and writes them in chunks. A chunk's name is that of the
query, the micro-batch, the task's partition and its place; a node that has written it knows. So a
task that is run again changes nothing that was written, nor does one that was thought dead and
goes on behind a later micro-batch. Rows may come in any order; those of one partition have to be
the same when it is made again.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from raftwood.pipeline.kv.options import KvSinkOptions
from raftwood.pipeline.kv.rows_out import RowLayout, TaskRows
from raftwood.pipeline.kv.tables import connected_table
from raftwood.pipeline.sink.tasks import Written, micro_batch, partition
from raftwood.zeppelin.client.batches import NamedRows

CHUNKS_PER_PRODUCER: Final = 64
"""A node knows so many of a producer for long, however much others write."""


class TaskName(msgspec.Struct, frozen=True):
    """What a task writes: the same again has the same."""

    writer: str
    """A query, or a batch write."""
    batch: int
    partition: int

    def of_chunk(self, place: int) -> tuple[str, int]:
        """Producer and number."""
        what = f"{self.writer}\0{self.partition}\0{place // CHUNKS_PER_PRODUCER}"
        producer = f"spark-{hashlib.sha256(what.encode()).hexdigest()[:40]}"
        return producer, self.batch * CHUNKS_PER_PRODUCER + place % CHUNKS_PER_PRODUCER


def write_rows(
    options: KvSinkOptions, layout: RowLayout, name: TaskName, batches: Iterator[Any]
) -> Written:
    """All rows of a task."""
    rows = TaskRows(layout)
    for batch in batches:
        rows.add(batch)
    if rows.count:
        chunks = (
            NamedRows(*name.of_chunk(place), *chunk)
            for place, chunk in enumerate(rows.chunks(options.rows_per_request))
        )
        connected_table(options.access).write_named(chunks, operation=options.operation)
    return Written(rows.count)


class KvBatchWriter(DataSourceArrowWriter):
    """One write of a DataFrame."""

    def __init__(self, options: KvSinkOptions, layout: RowLayout, run: str) -> None:
        self._options = options
        self._layout = layout
        self._run = run

    def write(self, iterator: Iterator[Any]) -> Written:
        writer, version = self._options.transaction or (f"run-{self._run}", 0)
        return write_rows(
            self._options, self._layout, TaskName(writer, version, partition()), iterator
        )


class KvStreamWriter(DataSourceStreamArrowWriter):
    """One streaming query."""

    def __init__(self, options: KvSinkOptions, layout: RowLayout) -> None:
        self._options = options
        self._layout = layout

    def write(self, iterator: Iterator[Any]) -> Written:
        name = TaskName(*micro_batch(), partition())
        return write_rows(self._options, self._layout, name, iterator)
