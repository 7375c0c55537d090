"""When a record was made, from what clients send; where that makes no sense, when it came in."""

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

NS_PER_S: Final = 1_000_000_000
EARLIEST_NS: Final = 946_684_800 * NS_PER_S
"""2000: what is older comes from a clock that was never set."""
AHEAD_NS_MAX: Final = 86_400 * NS_PER_S
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = ((1e11, NS_PER_S), (1e14, 1_000_000), (1e17, 1_000), (1e20, 1))
"""A number below the first is in units of so many nanoseconds: s, ms, µs, ns."""
_RFC3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,12}))?"
    r"(?:[Zz]|([+-])(\d\d):?(\d\d))?",
    re.ASCII,
)


def sensible(time_ns: int | None, received_ns: int) -> int:
    """The time itself from 2000 up to a day ahead of the receipt, else the receipt's."""
    if time_ns is None or not EARLIEST_NS <= time_ns <= received_ns + AHEAD_NS_MAX:
        return received_ns
    return time_ns


def from_number(number: float) -> int | None:
    """Since 1970, in seconds, ms, µs or ns: which of them the size tells."""
    for limit, unit in _UNITS:
        if 0 <= number < limit:
            whole = int(number)
            # A float of seconds tells microseconds, and below them nothing but noise.
            return whole * unit + round((number - whole) * unit / 1000) * 1000
    return None


def from_rfc3339(text: str) -> int | None:
    """As of RFC 3339, with a blank for the T too; without a zone it is UTC."""
    if (found := _RFC3339.fullmatch(text)) is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, ahead_h, ahead_m = found.groups()
    try:
        zone = UTC
        if sign:
            ahead = timedelta(hours=int(ahead_h), minutes=int(ahead_m))
            zone = timezone(ahead if sign == "+" else -ahead)
        # A leap second is the one after it.
        moment = datetime(
            int(year), int(month), int(day), int(hour), int(minute), min(int(second), 59),
            tzinfo=zone,
        )  # fmt: skip
        since = moment - _EPOCH
    except (ValueError, OverflowError):
        return None
    seconds = since.days * 86_400 + since.seconds + (1 if second == "60" else 0)
    return seconds * NS_PER_S + int(f"{fraction or '':0<9}"[:9])


def from_any(value: object) -> int | None:
    """From a JSON value: a number, digits, or RFC 3339."""
    if isinstance(value, str):
        if value.isascii() and value.isdigit() and len(value) <= 20:
            return from_number(int(value))
        return from_rfc3339(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return from_number(value)
    return None
