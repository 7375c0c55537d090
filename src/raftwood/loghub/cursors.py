"""Cursors as text: base64 of a position's decimal number, as SLS clients expect them."""

import base64
import binascii

from raftwood.base.errors import InvalidInput
from raftwood.base.position import Position, parse_position
from raftwood.loghub.errors import InvalidCursor


def encode_cursor(position: int) -> str:
    return base64.b64encode(str(position).encode()).decode()


def decode_cursor(text: str) -> Position:
    """`InvalidCursor` for what no gateway ever gave."""
    try:
        digits = base64.b64decode("".join(text.split()), validate=True).decode("ascii")
        return parse_position(digits)
    except (binascii.Error, ValueError, InvalidInput) as error:
        raise InvalidCursor(
            f"{text[:60]!r} is no cursor: ask for one with type=cursor, or use the one that a pull "
            "answered"
        ) from error
