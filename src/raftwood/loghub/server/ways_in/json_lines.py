"""JSON lines, or one JSON array, of objects: each a record."""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from raftwood.base.files import Buffer
from raftwood.loghub.decode_bounds import DEFAULT_BOUNDS, DecodeBounds, check_json_document
from raftwood.loghub.server.ways_in import times
from raftwood.loghub.server.ways_in.json_records import (
    TIME_FIELDS,
    UNREADABLE,
    contents_of,
    decode_object,
    lines_of,
    refused,
    time_of,
)
from raftwood.loghub.server.ways_in.records import PAUSE, Section, encode_record, sliced

_decode_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_ARRAY: Final = re.compile(rb"\s*\[")
_Line = tuple[str, bytes | msgspec.Raw]


def decode(
    body: Buffer,
    *,
    received_ns: int,
    time_field: str = "",
    bounds: DecodeBounds = DEFAULT_BOUNDS,
) -> Iterator[Section]:
    """All lines, or `InvalidInput` that names the first that is wrong; blank ones are skipped.

    The time is taken from `time_field`, or where it is empty from the first of `TIME_FIELDS`.
    """
    fields = (time_field,) if time_field else TIME_FIELDS
    data = bytes(body)
    lines = _lines(data)
    if _ARRAY.match(data):
        for _ in check_json_document(data, bounds, "the JSON array"):
            yield PAUSE
        lines = _items(data)
    for part in sliced(lines, _size_of):
        yield Section(
            {}, [_record(name, line, fields, received_ns, bounds) for name, line in part if line]
        )


def _record(
    name: str,
    line: bytes | msgspec.Raw,
    fields: tuple[str, ...],
    received_ns: int,
    bounds: DecodeBounds,
) -> bytes:
    record = decode_object(bytes(line), bounds, name)
    time_ns = times.sensible(time_of(record, fields), received_ns)
    return encode_record(time_ns, contents_of(record))


def _size_of(line: _Line) -> int:
    return len(memoryview(line[1]))


def _items(body: bytes) -> Iterator[_Line]:
    try:
        items = _decode_array(body)
    except UNREADABLE as error:
        raise refused("the JSON array", error) from error
    yield from ((f"item {number} of the array", item) for number, item in enumerate(items, 1))


def _lines(body: bytes) -> Iterator[_Line]:
    """Blank ones are empty: many of them are work too."""
    for number, line in lines_of(body):
        yield f"line {number}", b"" if line.isspace() else line
