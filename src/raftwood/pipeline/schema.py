"""The one schema of a logstore's records, and the projection to a user's schema.

A user's schema names columns of the schema below, and fields of the contents: `status int` is the
content `status`, cast, and `contents.time` the content whose name is that of a column. Only named
columns are decoded.
"""

from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from raftwood.base.errors import InvalidInput
from raftwood.pipeline.columns import CONTENT_PREFIX, Column, Field, Projection, WantedColumns

_MAP: Final = MapType(StringType(), StringType())
_NESTED: Final = (ArrayType, MapType, StructType, VariantType)


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
    """Returns the schema of a logstore without a user's schema."""
    return StructType(
        [
            StructField(column.value, kind)
            for column, kind in TYPES.items()
            if includes_headers or column is not Column.HEADERS
        ]
    )


def projection_of(schema: StructType) -> Projection:
    """`InvalidInput` for a column that no record can provide."""
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


SPARK_TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "binary": BinaryType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "date": DateType(),
    "timestamp": TimestampType(),
}
"""Spark's types for the names of `columns.CONTENT_TYPES`."""


def struct_of(wanted: Iterable[WantedColumns]) -> StructType:
    """Returns Spark's fields for columns by name."""
    return StructType(
        [
            StructField(
                each.name,
                TYPES[Column(each.name)] if each.type is None else SPARK_TYPES[each.type],
            )
            for each in wanted
        ]
    )
