"""Numbers of payment cards: 13 to 19 digits with the right check digit, in one or in groups.

The first digit is that of an issuer of cards, 2 to 6, so that times since 1970 in milliseconds and
nanoseconds are left alone. Groups are those that cards are written in: of four digits each, with a
shorter last one, or of 4, 6 and 4 or 5. Spaces and dashes between groups, and the last four digits,
stay.
"""

import re
from typing import Final

from raftwood.clogs.masking.probes import Found, Probe, view_of

_SHOWN_DIGITS: Final = 4
_DIGITS: Final = b"0123456789"
_HIDDEN: Final = bytes.maketrans(_DIGITS, b"*" * 10)
_VALUES: Final = bytes.maketrans(_DIGITS, bytes(range(10)))
_DOUBLED: Final = bytes.maketrans(_DIGITS, bytes((0, 2, 4, 6, 8, 1, 3, 5, 7, 9)))
# What is behind a point is part of a fraction.
_IN_ONE: Final = re.compile(rb"(?<![0-9])(?<![0-9]\.)[2-6][0-9]{12,18}+(?![0-9])")
_FOURS: Final = re.compile(
    rb"(?<![0-9])[2-6][0-9]{3}(?:[ -][0-9]{4}){2}[ -][0-9]{1,4}(?![0-9])"
    rb"(?P<more>[ -][0-9]{1,3}(?![0-9]))?"
)
_SIX_BETWEEN: Final = re.compile(rb"(?<![0-9])[2-6][0-9]{3}[ -][0-9]{6}[ -][0-9]{4,5}(?![0-9])")


def is_card_number(digits: bytes) -> bool:
    """Whether the last digit is what Luhn's rule makes of the others."""
    last, others = digits[::-2], digits[-2::-2]
    return (sum(last.translate(_VALUES)) + sum(others.translate(_DOUBLED))) % 10 == 0


def _found(block: bytes, start: int, end: int) -> Found | None:
    number = block[start:end]
    digits = number.translate(None, b" -")
    if not 13 <= len(digits) <= 19 or not is_card_number(digits):
        return None
    # The last four may be in two groups.
    shown = 0
    cut = len(number)
    while shown < _SHOWN_DIGITS:
        cut -= 1
        shown += number[cut] in _DIGITS
    return Found(start, end, number[:cut].translate(_HIDDEN) + number[cut:])


def _in_one(block: bytes, at: int) -> Found | None:
    found = _IN_ONE.match(block, at)
    return None if found is None else _found(block, *found.span())


def _fours(block: bytes, at: int) -> Found | None:
    found = _FOURS.match(block, at)
    if found is None:
        return None
    whole = _found(block, *found.span())
    if whole is None and found.start("more") > 0:
        # What follows was another number.
        return _found(block, at, found.start("more"))
    return whole


def _six_between(block: bytes, at: int) -> Found | None:
    found = _SIX_BETWEEN.match(block, at)
    return None if found is None else _found(block, *found.span())


CARDS: Final = (
    Probe(view_of(b"0000000000000"), _in_one),
    # A year before a card number may have its groups seem to be those of another one.
    Probe(view_of(b"0000 0000 0000 0"), _fours, may_overlap=True),
    Probe(view_of(b"0000 000000 0000"), _six_between),
)
