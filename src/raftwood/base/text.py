"""Text from people and for people: control characters escaped; sizes and durations parsed.

`escaped` makes text from outside harmless for a terminal or a log. `parse_quantity` turns "64MiB"
and "5s" into bytes and milliseconds.
"""

import re
from fractions import Fraction
from typing import Final

# C0, DEL, C1, the two Unicode line breaks, text direction overrides, and lone surrogates.
_CONTROL: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escaped(text: str) -> str:
    """Returns the text with control characters written out, so that it can neither forge a line nor
    move a terminal's cursor.
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


_QUANTITY: Final = re.compile(r"(\d{1,20}(?:\.\d{1,9})?)\s*([A-Za-z]{0,3})")

BYTES: Final = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
MILLISECONDS: Final = {"": 1, "ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_quantity(text: str, units: dict[str, int]) -> int:
    """Parses a quantity into the unit worth 1; ValueError says what is wrong with the text."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in units:
        raise ValueError(f"expected a number with one of {', '.join(filter(None, units))}")
    amount = Fraction(match[1]) * units[match[2]]
    if amount.denominator != 1:
        raise ValueError("expected a whole number of the smallest unit")
    return amount.numerator


def units_of(name: str) -> dict[str, int] | None:
    """The units that a setting's name ends with, if any: units stand last, before _max or _min."""
    words = name.removesuffix("_max").removesuffix("_min").split("_")
    return {"bytes": BYTES, "ms": MILLISECONDS}.get(words[-1])
