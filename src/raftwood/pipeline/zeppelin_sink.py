"""DataFrames into tables of Zeppelin: each task's rows are written once, however often it runs.

A task gathers its rows by key, sorts them, and writes them in chunks. A chunk's name consists of
the query, the micro-batch, the task's partition and its place; a node remembers the chunks that it
has written. So a task that runs again changes nothing that was written, nor does a task that was
taken for dead and continues after a later micro-batch. Rows may come in any order; a partition that
is computed again must have the same rows.
"""

import hashlib
from collections.abc import Iterator, Sequence
from string import Formatter
from typing import Any, Final

import msgspec
import pyarrow
import pyarrow.compute
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import ByteType, IntegerType, LongType, ShortType, StructType

from raftwood.base.errors import InvalidConfiguration, InvalidInput, TooLarge
from raftwood.pipeline.spark import TaskCommit, micro_batch, partition
from raftwood.pipeline.zeppelin_options import KvSinkOptions, connected_table
from raftwood.zeppelin.client.arrow_rows import binary_words, encoded_words
from raftwood.zeppelin.client.bulk import NamedRows
from raftwood.zeppelin.resp import number_word

TASK_BYTES_MAX: Final = 256 << 20
"""Limit of keys and values that a task holds until it writes."""
_ROW_BYTES: Final = 200
_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode


class RowLayout(msgspec.Struct, frozen=True):
    """The roles of a row's columns."""

    key_parts: list[tuple[str, str | None]]
    """Text, and the column that follows it."""
    value_column: str | None
    json_columns: list[str]
    ttl_column: str | None
    ttl_ms: int | None
    adds: bool


def row_layout(schema: StructType, options: KvSinkOptions) -> RowLayout:
    """`InvalidConfiguration` for columns that do not exist."""
    kinds = {field.name: field.dataType for field in schema.fields}
    parts: list[tuple[str, str | None]] = [("", options.key_column)]
    if options.key is not None:
        parts = _template(options.key)
    named = [
        *(("key", column) for _, column in parts if column is not None),
        ("valueColumn", options.value_column),
        ("ttlColumn", options.ttl_column),
    ]
    for option, column in named:
        if column is not None and column not in kinds:
            raise InvalidConfiguration(
                f"{option} names {column!r}, and there is no such column: there are "
                f"{', '.join(kinds)}"
            )
    adds = options.operation == "increment"
    if adds and not isinstance(kinds.get(options.value_column or ""), _WHOLE):
        raise InvalidConfiguration(
            f"increments are whole numbers, and {options.value_column!r} is none: cast it to bigint"
        )
    return RowLayout(
        parts,
        options.value_column,
        [name for name in kinds if name not in (options.key_column, options.ttl_column)],
        options.ttl_column,
        options.ttl_ms,
        adds,
    )


def _template(text: str) -> list[tuple[str, str | None]]:
    try:
        parts = [(literal, column or None) for literal, column, _, _ in Formatter().parse(text)]
    except ValueError as error:
        raise InvalidConfiguration(
            f"key is {text!r}: {error}; a brace of the key itself is doubled"
        ) from error
    if not any(column for _, column in parts):
        raise InvalidConfiguration(f"key is {text!r}: name a column in it, such as user:{{id}}")
    return parts


class TaskRows:
    """All rows of a task by key: of several with one key the last one counts, or their sum."""

    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout
        self._rows: dict[bytes, tuple[Any, bytes]] = {}
        self._bytes = 0
        self.count = 0

    def add(self, batch: Any) -> None:
        layout = self._layout
        if not batch.num_rows:
            return
        keys = _keys(batch, layout)
        ends = _ends(batch, layout)
        self.count += len(keys)
        rows = self._rows
        if layout.adds:
            assert layout.value_column is not None
            for key, amount, end in zip(keys, _amounts(batch, layout), ends, strict=True):
                before = rows.get(key)
                rows[key] = (amount if before is None else before[0] + amount, end)
            self._bytes = len(rows) * _ROW_BYTES
        else:
            values = _values(batch, layout)
            rows.update(zip(keys, zip(values, ends, strict=True), strict=True))
            self._bytes += sum(map(len, keys)) + sum(map(len, values))
        if self._bytes > TASK_BYTES_MAX:
            raise TooLarge(
                f"a task writes more than {TASK_BYTES_MAX >> 20} MiB: cut the query into more "
                "tasks with repartition, or into smaller micro-batches"
            )

    def chunks(
        self, rows_max: int
    ) -> Iterator[tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]]]:
        """Yields keys, values and ends in the order of keys, which alone determine the chunks."""
        keys = sorted(self._rows)
        for begin in range(0, len(keys), rows_max):
            some = keys[begin : begin + rows_max]
            found = [self._rows[key] for key in some]
            values = [value for value, _ in found]
            if self._layout.adds:
                values = [b"%d" % value for value in values]
            yield some, values, [end for _, end in found]


def _keys(batch: Any, layout: RowLayout) -> list[bytes]:
    pieces: list[Any] = []
    for literal, column in layout.key_parts:
        if literal:
            pieces.append(literal.encode())
        if column is not None:
            pieces.append(binary_words(batch.column(column), column))
    columns = [[piece] * batch.num_rows if isinstance(piece, bytes) else piece for piece in pieces]
    return list(map(b"".join, zip(*columns, strict=True))) if len(columns) > 1 else columns[0]


def _values(batch: Any, layout: RowLayout) -> list[bytes]:
    if layout.value_column is not None:
        return binary_words(batch.column(layout.value_column), layout.value_column)
    rows = batch.select(layout.json_columns).to_pylist(maps_as_pydicts="lossy")
    return [_encode(row) for row in rows]


def _amounts(batch: Any, layout: RowLayout) -> list[int]:
    column = batch.column(layout.value_column)
    if column.null_count:
        raise InvalidInput(f"column {layout.value_column!r} has nulls: leave such rows out")
    return column.to_pylist()  # type: ignore[no-any-return]


def _ends(batch: Any, layout: RowLayout) -> list[bytes]:
    if layout.ttl_column is None:
        return [number_word(layout.ttl_ms or 0)] * int(batch.num_rows)
    seconds = batch.column(layout.ttl_column).cast(pyarrow.int64())
    return encoded_words(pyarrow.compute.multiply(seconds, 1000))


CHUNKS_PER_PRODUCER: Final = 64
"""A node remembers so many of a producer for long, however much others write."""


class TaskName(msgspec.Struct, frozen=True):
    """The identity of a task's write: a repeated task has the same."""

    writer: str
    """A query, or a batch write."""
    batch: int
    partition: int

    def of_chunk(self, place: int) -> tuple[str, int]:
        """Returns the producer and the number of a chunk."""
        what = f"{self.writer}\0{self.partition}\0{place // CHUNKS_PER_PRODUCER}"
        producer = f"spark-{hashlib.sha256(what.encode()).hexdigest()[:40]}"
        return producer, self.batch * CHUNKS_PER_PRODUCER + place % CHUNKS_PER_PRODUCER


def write_rows(
    options: KvSinkOptions, layout: RowLayout, name: TaskName, batches: Iterator[Any]
) -> TaskCommit:
    """Writes all rows of a task."""
    rows = TaskRows(layout)
    for batch in batches:
        rows.add(batch)
    if rows.count:
        chunks = (
            NamedRows(*name.of_chunk(place), *chunk)
            for place, chunk in enumerate(rows.chunks(options.rows_per_request))
        )
        connected_table(options.access).write_named(chunks, operation=options.operation)
    return TaskCommit(rows.count)


class KvBatchWriter(DataSourceArrowWriter):
    """One write of a DataFrame."""

    def __init__(self, options: KvSinkOptions, layout: RowLayout, run: str) -> None:
        self._options = options
        self._layout = layout
        self._run = run

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        writer, version = self._options.transaction or (f"run-{self._run}", 0)
        return write_rows(
            self._options, self._layout, TaskName(writer, version, partition()), iterator
        )


class KvStreamWriter(DataSourceStreamArrowWriter):
    """One streaming query."""

    def __init__(self, options: KvSinkOptions, layout: RowLayout) -> None:
        self._options = options
        self._layout = layout

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        name = TaskName(*micro_batch(), partition())
        return write_rows(self._options, self._layout, name, iterator)
