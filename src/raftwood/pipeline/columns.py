"""The columns of a logstore's records in Arrow's types, and the columns that a query wants.

It is the schema of `schema` without Spark: for the archive, and for reads without Spark.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

import msgspec
import pyarrow

from raftwood.base.errors import InvalidInput

CONTENT_PREFIX: Final = "contents."
_MAP: Final = pyarrow.map_(pyarrow.string(), pyarrow.string())


class Column(Enum):
    """The columns that every logstore has."""

    TIME = "time"
    TOPIC = "topic"
    SOURCE = "source"
    TAGS = "tags"
    CONTENTS = "contents"
    RAW = "raw"
    """A batch that cannot be decoded, in its stored form; else null."""
    SHARD = "shard"
    POSITION = "position"
    """The position of the record's batch, 16 bytes that sort in order."""
    INDEX = "index"
    """The record's number in its batch."""
    HEADERS = "headers"
    """The head of the batch: received_ms, format, codec, records."""


ARROW_TYPES: Final[dict[Column, Any]] = {
    Column.TIME: pyarrow.timestamp("us", "UTC"),
    Column.TOPIC: pyarrow.string(),
    Column.SOURCE: pyarrow.string(),
    Column.TAGS: _MAP,
    Column.CONTENTS: _MAP,
    Column.RAW: pyarrow.binary(),
    Column.SHARD: pyarrow.int32(),
    Column.POSITION: pyarrow.binary(),
    Column.INDEX: pyarrow.int32(),
}
"""The types of the columns of every record; only Spark's source has `headers`."""

CONTENT_TYPES: Final[dict[str, Any]] = {
    "string": pyarrow.string(),
    "binary": pyarrow.binary(),
    "boolean": pyarrow.bool_(),
    "int": pyarrow.int32(),
    "bigint": pyarrow.int64(),
    "float": pyarrow.float32(),
    "double": pyarrow.float64(),
    "date": pyarrow.date32(),
    "timestamp": pyarrow.timestamp("us", "UTC"),
}
"""The types that a content may be cast to, by their SQL names."""


class Field(msgspec.Struct, frozen=True):
    """One column of a query's result: a column of all logstores, or a content."""

    name: str
    type: Any
    """The type in Arrow."""
    column: Column | None
    content: str = ""


class Projection(msgspec.Struct, frozen=True):
    """What is decoded of a batch."""

    fields: list[Field]
    schema: Any
    """Arrow's schema, exactly as Spark expects it."""

    @property
    def columns(self) -> set[Column]:
        return {each.column for each in self.fields if each.column is not None}

    @property
    def keys(self) -> frozenset[str] | None:
        """Returns the wanted contents; None for all of them."""
        if Column.CONTENTS in self.columns:
            return None
        return frozenset(each.content for each in self.fields if each.column is None)


class WantedColumns(msgspec.Struct, frozen=True):
    """A column by its name; a content has a type as well."""

    name: str
    type: str | None

    @property
    def content(self) -> str:
        return self.name.removeprefix(CONTENT_PREFIX)


ALL: Final = tuple(WantedColumns(column.value, None) for column in ARROW_TYPES)


def wanted_columns(given: Sequence[str]) -> tuple[WantedColumns, ...]:
    """Parses `time` or `status int`: a column of all logstores, or a content with its type, by
    default string; `InvalidInput` for anything else.
    """
    found = tuple(_wanted(each) for each in given)
    names = [each.name for each in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(f"column {twice!r} is named twice")
    return found


def _wanted(text: str) -> WantedColumns:
    name, _, kind = text.strip().partition(" ")
    if not name:
        raise InvalidInput("a column has no name")
    if name in {column.value for column in ARROW_TYPES}:
        if kind:
            raise InvalidInput(
                f"column {name!r} has a type of its own; the content of that name is "
                f"`{CONTENT_PREFIX}{name}`"
            )
        return WantedColumns(name, None)
    kind = kind.strip().lower() or "string"
    if kind not in CONTENT_TYPES:
        raise InvalidInput(f"{text!r}: give one of {', '.join(CONTENT_TYPES)}")
    return WantedColumns(name, kind)


def projection_for(wanted: Sequence[WantedColumns]) -> Projection:
    """Returns the projection that Spark's source uses for a schema of these columns."""
    fields = []
    for each in wanted:
        if each.type is None:
            column = Column(each.name)
            fields.append(Field(each.name, ARROW_TYPES[column], column))
        else:
            fields.append(Field(each.name, CONTENT_TYPES[each.type], None, each.content))
    schema = pyarrow.schema([(field.name, field.type) for field in fields])
    return Projection(fields, schema)
