"""The records of a LogGroup as rows: by columns where Arrow is there, else by protobuf.

The former takes half the time: it goes through Python for each record once, at the end.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final

import msgspec

from raftwood.base.errors import InvalidConfiguration, TooLarge
from raftwood.base.files import Buffer
from raftwood.loghub.arrow_batches import import_arrow
from raftwood.loghub.log_groups import decode_log_group

Contents = dict[str, str | bytes]
_FEW_BYTES: Final = 1 << 10
"""Of a group for which columns do not pay."""


class Rows(msgspec.Struct, frozen=True):
    """All records of a group, and what they share; text, or bytes where they are not UTF-8."""

    times_ns: list[int]
    contents: list[Contents]
    topic: str | bytes
    source: str | bytes
    tags: Mapping[str, str | bytes]


def rows_of(data: Buffer) -> Rows:
    """`InvalidInput` for what is no LogGroup."""
    if len(data) > _FEW_BYTES and _has_arrow():
        try:
            return _by_columns(data)
        except TooLarge:
            pass  # too many different keys for a table
    return _by_protobuf(data)


@cache
def _has_arrow() -> bool:
    try:
        import_arrow()
    except InvalidConfiguration:
        return False
    return True


def _by_columns(data: Buffer) -> Rows:
    columns = import_module("raftwood.loghub.log_group_columns").columns_of(data)
    names = [_name(key) for key in columns.values]
    values = [_values(each) for each in columns.values.values()]
    if len(names) == 1 and not any(each.null_count for each in columns.values.values()):
        (name,) = names
        contents: list[Contents] = [{name: value} for value in values[0]]
    elif any(each.null_count for each in columns.values.values()):
        contents = [
            {name: value for name, value in zip(names, row, strict=True) if value is not None}
            for row in zip(*values, strict=True)
        ]
    else:
        contents = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    return Rows(
        columns.time_ns.tolist(),
        contents if names else [{} for _ in range(columns.count)],
        _text(columns.topic),
        _text(columns.source),
        {_name(key): _text(value) for key, value in columns.tags},
    )


def _values(column: Any) -> list[Any]:
    arrow = import_arrow()
    try:
        values: list[Any] = column.cast(arrow.string()).to_pylist()
    except arrow.ArrowInvalid:
        values = [None if value is None else _text(value) for value in column.to_pylist()]
    return values


def _by_protobuf(data: Buffer) -> Rows:
    group = decode_log_group(data)
    return Rows(
        [log.Time * 1_000_000_000 + log.Time_ns for log in group.Logs],
        [
            {_name(content.Key): _text(content.Value) for content in log.Contents}
            for log in group.Logs
        ],
        _text(group.Topic),
        _text(group.Source),
        {_name(tag.Key): _text(tag.Value) for tag in group.LogTags},
    )


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _name(value: bytes) -> str:
    return value.decode("utf-8", "replace")
