"""The one schema of a logstore's records, and how a user's schema is met from it.

A user's schema names columns of the one below, and beside them fields of the contents: `status int`
is the content `status`, cast, and `contents.time` the content that is called as a column is. Only
what is named is decoded.
"""

from enum import Enum
from typing import Any, Final

import msgspec
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from raftwood.base.errors import InvalidInput

_MAP: Final = MapType(StringType(), StringType())
_NESTED: Final = (ArrayType, MapType, StructType, VariantType)
CONTENT_PREFIX: Final = "contents."


class Column(Enum):
    """The columns that every logstore has."""

    TIME = "time"
    TOPIC = "topic"
    SOURCE = "source"
    TAGS = "tags"
    CONTENTS = "contents"
    RAW = "raw"
    """A batch that cannot be read, as it is stored; null else."""
    SHARD = "shard"
    POSITION = "position"
    """Of the record's batch, 16 bytes in order."""
    INDEX = "index"
    """The record in its batch."""
    HEADERS = "headers"
    """What is known of the batch: received_ms, format, codec, records."""


TYPES: Final[dict[Column, DataType]] = {
    Column.TIME: TimestampType(),
    Column.TOPIC: StringType(),
    Column.SOURCE: StringType(),
    Column.TAGS: _MAP,
    Column.CONTENTS: _MAP,
    Column.RAW: BinaryType(),
    Column.SHARD: IntegerType(),
    Column.POSITION: BinaryType(),
    Column.INDEX: IntegerType(),
    Column.HEADERS: _MAP,
}


def log_schema(*, includes_headers: bool = False) -> StructType:
    """What a logstore is read as where the user gives no schema."""
    return StructType(
        [
            StructField(column.value, kind)
            for column, kind in TYPES.items()
            if includes_headers or column is not Column.HEADERS
        ]
    )


class Field(msgspec.Struct, frozen=True):
    """One column of what a query gets: one of all logstores', or a content."""

    name: str
    type: Any
    """Arrow's."""
    column: Column | None
    content: str = ""


class Projection(msgspec.Struct, frozen=True):
    """What is decoded of a batch."""

    fields: list[Field]
    schema: Any
    """Arrow's, exactly as Spark expects it."""

    @property
    def columns(self) -> set[Column]:
        return {each.column for each in self.fields if each.column is not None}

    @property
    def keys(self) -> frozenset[str] | None:
        """The contents that are wanted; None for all of them."""
        if Column.CONTENTS in self.columns:
            return None
        return frozenset(each.content for each in self.fields if each.column is None)


def projection_of(schema: StructType) -> Projection:
    """`InvalidInput` for a column that cannot be made of a record."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    fields = [_field(wanted, arrow.field(place).type) for place, wanted in enumerate(schema.fields)]
    return Projection(fields, arrow)


def _field(wanted: StructField, arrow_type: Any) -> Field:
    name = wanted.name
    if not wanted.nullable:
        raise InvalidInput(f"column {name!r} is NOT NULL, and a record may lack it: leave that out")
    known = {column.value: column for column in Column}
    if name in known:
        column = known[name]
        if wanted.dataType != TYPES[column]:
            raise InvalidInput(
                f"column {name!r} is {TYPES[column].simpleString()}, not "
                f"{wanted.dataType.simpleString()}; the content of that name is "
                f"`{CONTENT_PREFIX}{name}`"
            )
        return Field(name, arrow_type, column)
    if isinstance(wanted.dataType, _NESTED):
        raise InvalidInput(
            f"column {name!r} is {wanted.dataType.simpleString()}: a content is text; take it as "
            "string, and parse it with from_json"
        )
    return Field(name, arrow_type, None, name.removeprefix(CONTENT_PREFIX))
