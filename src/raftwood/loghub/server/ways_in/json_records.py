"""JSON objects as records: each member a pair, texts as they are, all else as JSON."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from raftwood.base.errors import InvalidInput
from raftwood.loghub.decode_bounds import RECORDS_MAX
from raftwood.loghub.errors import BatchTooLarge
from raftwood.loghub.server.ways_in import times

UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What msgspec raises for what it cannot decode."""
TIME_FIELDS: Final = ("@timestamp", "timestamp", "time", "ts")
_LINES_MAX: Final = 4 * RECORDS_MAX
_encode: Final = msgspec.json.Encoder().encode
decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode
"""After `check_json`."""


def lines_of(body: bytes) -> Iterator[tuple[int, bytes]]:
    """With their numbers, one after the other: a body may be nothing but line ends."""
    at = 0
    for number in range(1, _LINES_MAX + 1):
        end = body.find(b"\n", at)
        yield number, body[at:] if end < 0 else body[at:end]
        if end < 0:
            return
        at = end + 1
    raise BatchTooLarge(f"a request has more than {_LINES_MAX} lines: send several requests")


def text_of(value: Any) -> bytes:
    """A text itself, all else as JSON."""
    return value.encode() if type(value) is str else _encode(value)


def contents_of(record: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    return [
        (key.encode(), value.encode() if type(value) is str else _encode(value))
        for key, value in record.items()
    ]


def time_of(record: dict[str, Any], fields: Iterable[str]) -> int | None:
    """From the first of the fields that is there and tells a time."""
    for field in fields:
        if field in record and (found := times.from_any(record[field])) is not None:
            return found
    return None


def refused(what: str, error: Exception) -> InvalidInput:
    return InvalidInput(f"{what} cannot be read: {str(error)[:200] or type(error).__name__}")
