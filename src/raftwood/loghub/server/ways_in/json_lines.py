"""JSON lines, or one JSON array, of objects: each a record."""

from collections.abc import Iterator
from typing import Final

import msgspec

from raftwood.base.files import Buffer
from raftwood.loghub.decode_bounds import (
    DEFAULT_BOUNDS,
    SLICE_BYTES,
    DecodeBounds,
    check_json,
    check_json_document,
)
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
_Line = tuple[int, bytes | msgspec.Raw]


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
    lines, name = _lines(data), "line {}"
    if data[:SLICE_BYTES].lstrip()[:1] == b"[":
        for _ in check_json_document(data, bounds, "the JSON array"):
            yield PAUSE
        lines, name = _items(data), "item {} of the array"
    for part in sliced(lines, _size_of):
        yield Section(
            {},
            [
                _record(name, number, line, fields, received_ns, bounds)
                for number, line in part
                if line
            ],
        )


def _record(
    name: str,
    number: int,
    line: bytes | msgspec.Raw,
    fields: tuple[str, ...],
    received_ns: int,
    bounds: DecodeBounds,
) -> bytes:
    data = line if type(line) is bytes else bytes(line)
    check_json(data, bounds, name, number)
    try:
        record = decode_object(data)
    except UNREADABLE as error:
        raise refused(name.format(number), error) from error
    time_ns = times.sensible(time_of(record, fields), received_ns)
    return encode_record(time_ns, contents_of(record))


def _size_of(line: _Line) -> int:
    data = line[1]
    return len(data if type(data) is bytes else memoryview(data))


def _items(body: bytes) -> Iterator[_Line]:
    try:
        items = _decode_array(body)
    except UNREADABLE as error:
        raise refused("the JSON array", error) from error
    yield from enumerate(items, 1)


def _lines(body: bytes) -> Iterator[_Line]:
    """Blank ones are empty: many of them are work too."""
    for number, line in lines_of(body):
        yield number, b"" if line.isspace() else line
