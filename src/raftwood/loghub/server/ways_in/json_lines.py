"""JSON lines, or one JSON array, of objects: each a record."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from raftwood.base.files import Buffer
from raftwood.loghub.server.ways_in import times
from raftwood.loghub.server.ways_in.json_records import (
    TIME_FIELDS,
    UNREADABLE,
    contents_of,
    refused,
    time_of,
)
from raftwood.loghub.server.ways_in.records import Section, encode_record

_decode_line: Final = msgspec.json.Decoder(dict[str, Any]).decode
_decode_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def decode(body: Buffer, *, received_ns: int, time_field: str = "") -> list[Section]:
    """All lines, or `InvalidInput` that names the first that is wrong; blank ones are skipped.

    The time is taken from `time_field`, or where it is empty from the first of `TIME_FIELDS`.
    """
    fields = (time_field,) if time_field else TIME_FIELDS
    records = []
    for name, line in _lines(bytes(body)):
        try:
            record = _decode_line(line)
        except UNREADABLE as error:
            raise refused(name, error) from error
        time_ns = times.sensible(time_of(record, fields), received_ns)
        records.append(encode_record(time_ns, contents_of(record)))
    return [Section({}, records)]


def _lines(body: bytes) -> Iterator[tuple[str, bytes | msgspec.Raw]]:
    if body.lstrip()[:1] == b"[":
        try:
            items = _decode_array(body)
        except UNREADABLE as error:
            raise refused("the JSON array", error) from error
        yield from ((f"item {number} of the array", item) for number, item in enumerate(items, 1))
        return
    for number, line in enumerate(body.split(b"\n"), 1):
        if line and not line.isspace():
            yield f"line {number}", line
