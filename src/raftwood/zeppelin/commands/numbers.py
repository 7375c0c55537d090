"""Numbers in arguments and values, as strict as in Redis; and the commands that count."""

import re
from decimal import Context, Decimal, InvalidOperation, Overflow
from typing import Final

from raftwood.zeppelin.commands.command import (
    NOT_A_FLOAT,
    NOT_AN_INTEGER,
    RedisError,
    Turn,
    writing,
)
from raftwood.zeppelin.resp import bulk, integer

INTEGER_MAX: Final = (1 << 63) - 1
INTEGER_MIN: Final = -(1 << 63)

_INTEGER_BYTES_MAX: Final = 20
_FLOAT: Final = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_INFINITY: Final = re.compile(rb"[+-]?inf(?:inity)?", re.IGNORECASE)
# Redis adds in the processor's 80 bits, which are 19 to 21 digits, and shows 17 of a fraction.
_CONTEXT: Final = Context(prec=21, Emax=4932, Emin=-4951)
_FRACTION: Final = Decimal("1e-17")
_FLOAT_BYTES_MAX: Final = 256


def as_integer(word: bytes, refusal: str = NOT_AN_INTEGER) -> int:
    """Parses a whole number of 64 bits, in the only form that Redis accepts."""
    if len(word) <= _INTEGER_BYTES_MAX:
        try:
            number = int(word)
        except ValueError:
            raise RedisError(refusal) from None
        if b"%d" % number == word and INTEGER_MIN <= number <= INTEGER_MAX:
            return number
    raise RedisError(refusal)


def _as_decimal(word: bytes) -> Decimal:
    if len(word) <= _FLOAT_BYTES_MAX:
        if _FLOAT.fullmatch(word):
            try:
                return _CONTEXT.create_decimal(word.decode())
            except (InvalidOperation, Overflow):
                pass
        elif _INFINITY.fullmatch(word):
            return Decimal(word.decode())
    raise RedisError(NOT_A_FLOAT)


def _add(turn: Turn, key: bytes, amount: int) -> bytes:
    value = turn.get(key)
    # The time to live stays, as with every change of a value that does not replace it.
    number, expires_ms = (0, 0) if value is None else (as_integer(value.data), value.expires_ms)
    number += amount
    if not INTEGER_MIN <= number <= INTEGER_MAX:
        raise RedisError("ERR increment or decrement would overflow")
    turn.put(key, b"%d" % number, expires_ms)
    return integer(number)


def incr(turn: Turn, arguments: list[bytes]) -> bytes:
    return _add(turn, arguments[1], 1)


def decr(turn: Turn, arguments: list[bytes]) -> bytes:
    return _add(turn, arguments[1], -1)


def incrby(turn: Turn, arguments: list[bytes]) -> bytes:
    return _add(turn, arguments[1], as_integer(arguments[2]))


def decrby(turn: Turn, arguments: list[bytes]) -> bytes:
    amount = as_integer(arguments[2])
    if amount == INTEGER_MIN:
        raise RedisError("ERR decrement would overflow")
    return _add(turn, arguments[1], -amount)


def incrbyfloat(turn: Turn, arguments: list[bytes]) -> bytes:
    value = turn.get(arguments[1])
    before = Decimal(0) if value is None else _as_decimal(value.data)
    amount = _as_decimal(arguments[2])
    try:
        after = _CONTEXT.add(before, amount)
    except (InvalidOperation, Overflow):
        after = Decimal("nan")
    if not after.is_finite():
        raise RedisError("ERR increment would produce NaN or Infinity")
    shown = _shown(after)
    turn.put(arguments[1], shown, 0 if value is None else value.expires_ms)
    return bulk(shown)


def _shown(number: Decimal) -> bytes:
    if number.adjusted() < 3:
        number = number.quantize(_FRACTION)
    whole, _, fraction = format(number, "f").partition(".")
    fraction = fraction[:17].rstrip("0")
    shown = f"{whole}.{fraction}" if fraction else whole
    return b"0" if shown == "-0" else shown.encode()


COMMANDS: Final = (
    writing("incr", 2, incr, "Adds one"),
    writing("decr", 2, decr, "Takes one off"),
    writing("incrby", 3, incrby, "Adds a whole number"),
    writing("decrby", 3, decrby, "Takes a whole number off"),
    writing("incrbyfloat", 3, incrbyfloat, "Adds a number with a fraction"),
)
