"""Rows of a DataFrame as the Arrow batches that a logstore keeps.

Either the rows have a column `contents`, a map: then they are as the source reads them, and where
they were stored before is left out. Or every column is a content, under its name and in its type,
but for `time`, `topic`, `source` and `tags` where these have the source's types.
"""

from typing import Any, Final

import msgspec
import numpy
import pyarrow
from pyspark.sql.types import StructType

from raftwood.base.errors import InvalidInput
from raftwood.loghub.arrow_batches import SOURCE, TAG_PREFIX, TIME, TOPIC
from raftwood.pipeline.columns import CONTENT_PREFIX, Column
from raftwood.pipeline.schema import TYPES

_STORED_NAMES: Final = {Column.TIME: TIME, Column.TOPIC: TOPIC, Column.SOURCE: SOURCE}
CELLS_MAX: Final = 1 << 20
"""Of a table that maps become: records with names of their own each make one that is mostly empty,
and larger than a logstore takes."""
_LEFT_OUT: Final = {Column.RAW, Column.SHARD, Column.POSITION, Column.INDEX, Column.HEADERS}


class TooWide(Exception):
    """So many rows have too many names for one table: make several of them."""


class Layout(msgspec.Struct, frozen=True):
    """What each column of a DataFrame becomes."""

    plain: list[tuple[str, str]]
    """Columns that are stored as they are, and their names there."""
    maps: list[tuple[str, str]]
    """Columns of maps, and what stands before each key's name."""
    key_column: str | None


def layout_of(schema: StructType, key_column: str | None) -> Layout:
    """`InvalidInput` for columns that nobody knows what to do with."""
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
    return Layout(plain, maps, key_column)


def stored_table(batch: Any, layout: Layout) -> Any:
    """A record batch as it is stored; `TooWide` where it is to be halved first."""
    arrays = {stored: batch.column(name) for name, stored in layout.plain}
    for name, prefix in layout.maps:
        for key, values in _columns_of_map(batch.column(name)):
            arrays[_free_name(prefix + key, arrays)] = values
    return pyarrow.RecordBatch.from_pydict(arrays)


def _free_name(name: str, taken: dict[str, Any]) -> str:
    """A content may be called as a column that is there for another reason."""
    while name in taken:
        name += "_"
    return name


def _columns_of_map(column: Any) -> list[tuple[str, Any]]:
    """A column for each key, null where a record lacks it."""
    # Of a slice the keys are those of the whole: the offsets say which ones are its own.
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
