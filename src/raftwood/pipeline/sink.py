"""DataFrames into logstores: the writers that Spark calls; a task's rows are durable when it ends.

A streaming query writes each micro-batch once: repeating a query's micro-batch and partition stores
nothing twice. A batch write does so for the tasks of one run, and with `txnAppId` and `txnVersion`
for whole runs.

If the rows have a map column `contents`, they are in the form that the source reads; columns about
their former place are left out. Otherwise every column is a content, under its name and in its
type, except `time`, `topic`, `source` and `tags` if these have the source's types.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy
import pyarrow
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from raftwood.base.errors import InvalidInput
from raftwood.loghub.arrow_batches import SOURCE, TAG_PREFIX, TIME, TOPIC
from raftwood.pipeline.columns import CONTENT_PREFIX, Column
from raftwood.pipeline.hub import connected
from raftwood.pipeline.options import SinkOptions
from raftwood.pipeline.schema import TYPES
from raftwood.pipeline.sink_sender import ChunkSender, WriteKey
from raftwood.pipeline.spark import TaskCommit, micro_batch, partition

_STORED_NAMES: Final = {Column.TIME: TIME, Column.TOPIC: TOPIC, Column.SOURCE: SOURCE}
CELLS_MAX: Final = 1 << 20
"""Limit of a table made of maps: records with names of their own make a table that is mostly empty,
and larger than a logstore accepts.
"""
_LEFT_OUT: Final = {Column.RAW, Column.SHARD, Column.POSITION, Column.INDEX, Column.HEADERS}


class TooWide(Exception):
    """The rows have too many names for one table: split them."""


class SinkLayout(msgspec.Struct, frozen=True):
    """What each column of a DataFrame becomes."""

    plain: list[tuple[str, str]]
    """Columns that are stored unchanged, and their stored names."""
    maps: list[tuple[str, str]]
    """Columns of maps, and the prefix of each key's name."""
    key_column: str | None


def layout_of(schema: StructType, key_column: str | None) -> SinkLayout:
    """`InvalidInput` for columns that cannot be stored."""
    known = {column.value: column for column in Column}
    kinds = {field.name: field.dataType for field in schema.fields}
    if key_column is not None and key_column not in kinds:
        raise InvalidInput(f"keyColumn is {key_column!r}, and there is no such column")
    is_log = kinds.get(Column.CONTENTS.value) == TYPES[Column.CONTENTS]
    plain: list[tuple[str, str]] = []
    maps: list[tuple[str, str]] = []
    for name, kind in kinds.items():
        column = known.get(name)
        is_known = column is not None and kind == TYPES[column]
        if is_known and column in _STORED_NAMES:
            plain.append((name, _STORED_NAMES[column]))
        elif is_known and column is Column.TAGS:
            maps.append((name, TAG_PREFIX))
        elif not is_log:
            plain.append((name, name.removeprefix(CONTENT_PREFIX)))
        elif is_known and column is Column.CONTENTS:
            maps.append((name, ""))
        elif not (is_known and column in _LEFT_OUT) and name != key_column:
            raise InvalidInput(
                f"column {name!r} stands beside a column of contents: put it into these with "
                "map_concat, or drop it"
            )
    if not plain and not maps:
        raise InvalidInput("there is no column to write")
    return SinkLayout(plain, maps, key_column)


def stored_table(batch: Any, layout: SinkLayout) -> Any:
    """Returns a record batch in its stored form; `TooWide` if it must be halved first."""
    arrays = {stored: batch.column(name) for name, stored in layout.plain}
    for name, prefix in layout.maps:
        for key, values in _columns_of_map(batch.column(name)):
            arrays[_free_name(prefix + key, arrays)] = values
    return pyarrow.RecordBatch.from_pydict(arrays)


def _free_name(name: str, taken: dict[str, Any]) -> str:
    """Returns a column name that is free: a content may have the name of another column."""
    while name in taken:
        name += "_"
    return name


def _columns_of_map(column: Any) -> list[tuple[str, Any]]:
    """Returns a column for each key, null if a record lacks it."""
    # A slice shares the keys of the whole: the offsets show which ones are its own.
    ends = column.offsets.to_numpy()
    first, size, count = int(ends[0]), int(ends[-1] - ends[0]), len(column)
    encoded = column.keys.slice(first, size).dictionary_encode()
    items, which = column.items.slice(first, size), encoded.indices.to_numpy()
    names = encoded.dictionary.to_pylist()
    width = len(names)
    if width * count > CELLS_MAX and count > 1:
        raise TooWide
    if size == width * count and (which.reshape(count, width) == numpy.arange(width)).all():
        # Every record has all keys, in one order.
        order = numpy.arange(size, dtype=numpy.int32).reshape(count, width).T.ravel()
        values = items if width == 1 else items.take(pyarrow.array(order))
        return [(name, values.slice(place * count, count)) for place, name in enumerate(names)]
    records = numpy.repeat(numpy.arange(count), numpy.diff(ends))
    found = []
    for place, name in enumerate(names):
        mine = numpy.flatnonzero(which == place)
        places = numpy.full(count, -1, dtype=numpy.int64)
        places[records[mine]] = mine
        found.append((name, items.take(pyarrow.array(places, mask=places < 0))))
    return found


CHUNK_BYTES_MAX: Final = 2 << 20


def write_rows(
    options: SinkOptions, layout: SinkLayout, key: WriteKey, batches: Iterator[Any]
) -> TaskCommit:
    """Writes all rows of a task."""
    sender = ChunkSender(connected(options.access), options.access, key, options.codec)
    for batch in batches:
        for chunk, table in _chunks(batch, layout):
            keys = None if layout.key_column is None else chunk.column(layout.key_column)
            sender.send(table, keys)
    sender.finish()
    return TaskCommit(sender.rows)


def _chunks(batch: Any, layout: SinkLayout) -> Iterator[tuple[Any, Any]]:
    """Yields slices that a logstore accepts, and their stored form; rows alone decide the cuts."""
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

    def __init__(self, options: SinkOptions, layout: SinkLayout, run: str) -> None:
        self._options = options
        self._layout = layout
        self._run = run

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        transaction = self._options.transaction
        writer, version = (f"run-{self._run}", 0) if transaction is None else transaction
        key = WriteKey(writer, version, partition())
        return write_rows(self._options, self._layout, key, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """One streaming query."""

    def __init__(self, options: SinkOptions, layout: SinkLayout) -> None:
        self._options = options
        self._layout = layout

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        key = WriteKey(*micro_batch(), partition())
        return write_rows(self._options, self._layout, key, iterator)
