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
from raftwood.loghub.server.ways_in.records import Section, encode_record, sliced

_decode_line: Final = msgspec.json.Decoder(dict[str, Any]).decode
_decode_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def decode(body: Buffer, *, received_ns: int, time_field: str = "") -> Iterator[Section]:
    """All lines, or `InvalidInput` that names the first that is wrong; blank ones are skipped.

    The time is taken from `time_field`, or where it is empty from the first of `TIME_FIELDS`.
    """
    fields = (time_field,) if time_field else TIME_FIELDS
    for part in sliced(_lines(bytes(body))):
        yield Section({}, [_record(name, line, fields, received_ns) for name, line in part])


def _record(
    name: str, line: bytes | msgspec.Raw, fields: tuple[str, ...], received_ns: int
) -> bytes:
    try:
        record = _decode_line(line)
    except UNREADABLE as error:
        raise refused(name, error) from error
    time_ns = times.sensible(time_of(record, fields), received_ns)
    return encode_record(time_ns, contents_of(record))


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
