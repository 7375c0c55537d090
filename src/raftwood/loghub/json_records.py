"""JSON objects as records, and the times that clients send.

Each member of an object is a pair: texts as they are, all else as JSON. A record's time is the one
that its client sent; if that is implausible, the time of receipt.
"""

import functools
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from raftwood.base.errors import InvalidInput
from raftwood.loghub.decode_bounds import RECORDS_MAX
from raftwood.loghub.errors import BatchTooLarge

NS_PER_S: Final = 1_000_000_000
EARLIEST_NS: Final = 946_684_800 * NS_PER_S
"""The year 2000: an older time comes from a clock that was never set."""
AHEAD_NS_MAX: Final = 86_400 * NS_PER_S
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = ((1e11, NS_PER_S), (1e14, 1_000_000), (1e17, 1_000), (1e20, 1))
"""A number below the first is in units of so many nanoseconds: s, ms, µs, ns."""
_RFC3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:)(\d\d)(?:[.,](\d{1,12}))?([Zz]|[+-]\d\d:?\d\d)?", re.ASCII
)


def sensible(time_ns: int | None, received_ns: int) -> int:
    """Returns the time if it lies from 2000 up to a day after the receipt, else the receipt's."""
    if time_ns is None or not EARLIEST_NS <= time_ns <= received_ns + AHEAD_NS_MAX:
        return received_ns
    return time_ns


def from_number(number: float) -> int | None:
    """Reads a time since 1970; its size says whether it is in seconds, ms, µs or ns."""
    for limit, unit in _UNITS:
        if 0 <= number < limit:
            whole = int(number)
            # A float of seconds has microseconds; its further digits are noise.
            return whole * unit + round((number - whole) * unit / 1000) * 1000
    return None


def from_rfc3339(text: str) -> int | None:
    """Reads RFC 3339, also with a blank for the T; a time without a zone is UTC."""
    if (found := _RFC3339.fullmatch(text)) is None:
        return None
    minute, second, fraction, zone = found.groups()
    minute_s = _seconds(minute, zone)
    # A leap second counts as the second after it.
    if minute_s is None or second > "60":
        return None
    return (minute_s + int(second)) * NS_PER_S + int(f"{fraction or '':0<9}"[:9])


@functools.lru_cache(maxsize=256)
def _seconds(minute: str, zone: str | None) -> int | None:
    """Returns seconds since 1970; cached, because most records are of the same few minutes."""
    if zone in ("Z", "z", None):
        zone = "+00:00"
    try:
        moment = datetime.fromisoformat(f"{minute.upper()}00{zone}")
    except ValueError:
        return None
    since = moment - _EPOCH
    return since.days * 86_400 + since.seconds


def from_any(value: object) -> int | None:
    """Reads a JSON value: a number, digits, or RFC 3339."""
    if isinstance(value, str):
        if value.isascii() and value.isdigit() and len(value) <= 20:
            return from_number(int(value))
        return from_rfc3339(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return from_number(value)
    return None


UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What msgspec raises for what it cannot decode."""
TIME_FIELDS: Final = ("@timestamp", "timestamp", "time", "ts")
_LINES_MAX: Final = 4 * RECORDS_MAX
_encode: Final = msgspec.json.Encoder().encode
decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode
"""Decodes one object; call `check_json` first."""


def lines_of(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the lines with their numbers, one by one: a body may be nothing but line ends."""
    at = 0
    for number in range(1, _LINES_MAX + 1):
        end = body.find(b"\n", at)
        yield number, body[at:] if end < 0 else body[at:end]
        if end < 0:
            return
        at = end + 1
    raise BatchTooLarge(f"a request has more than {_LINES_MAX} lines: send several requests")


def text_of(value: Any) -> bytes:
    """Returns a text as it is, all else as JSON."""
    return value.encode() if type(value) is str else _encode(value)


def contents_of(record: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    return [
        (key.encode(), value.encode() if type(value) is str else _encode(value))
        for key, value in record.items()
    ]


def time_of(record: dict[str, Any], fields: Iterable[str]) -> int | None:
    """Returns the time in the first of the fields that has a readable one."""
    for field in fields:
        if field in record and (found := from_any(record[field])) is not None:
            return found
    return None


def refused(what: str, error: Exception) -> InvalidInput:
    return InvalidInput(f"{what} cannot be read: {str(error)[:200] or type(error).__name__}")
