"""Times to live: given as seconds or milliseconds, from now on or absolute; kept absolute, in ms.

What a replica or a later reader gets is a moment, never a span: it does not matter when it reads.
"""

from typing import Final

from raftwood.zeppelin.commands.numbers import as_integer
from raftwood.zeppelin.commands.refusals import SYNTAX, Refused, invalid_expire
from raftwood.zeppelin.commands.table import OnKeys, reading, writing
from raftwood.zeppelin.commands.turn import EXPIRY_MS_MAX, Turn
from raftwood.zeppelin.resp.answers import integer

_SPANS: Final = {b"EX": (1000, True), b"PX": (1, True), b"EXAT": (1000, False), b"PXAT": (1, False)}
"""By how much it is multiplied, and whether it begins now."""


def is_expiry_word(word: bytes) -> bool:
    return word in _SPANS


def moment(turn: Turn, word: bytes, number: bytes, command: str) -> int:
    """When `EX 10` and the like end, which has to be a time that exists and is not before 1970."""
    factor, begins_now = _SPANS[word]
    amount = as_integer(number)
    expires_ms = amount * factor + (turn.now_ms if begins_now else 0)
    if amount <= 0 or expires_ms > EXPIRY_MS_MAX:
        raise invalid_expire(command)
    return expires_ms


def _expire(name: str, word: bytes) -> OnKeys:
    def run(turn: Turn, arguments: list[bytes]) -> bytes:
        factor, begins_now = _SPANS[word]
        expires_ms = as_integer(arguments[2]) * factor + (turn.now_ms if begins_now else 0)
        if abs(expires_ms) > EXPIRY_MS_MAX:
            raise invalid_expire(name)
        options = _options(arguments[3:])
        value = turn.get(arguments[1])
        if value is None or not _may_change(options, value.expires_ms, expires_ms):
            return integer(0)
        # A time that has passed is one that a record can hold as well: the key is deleted by it.
        turn.put(arguments[1], value.data, max(expires_ms, 1))
        return integer(1)

    return run


def _options(words: list[bytes]) -> list[bytes]:
    options = [word.upper() for word in words]
    for option in options:
        if option not in (b"NX", b"XX", b"GT", b"LT"):
            shown = words[options.index(option)].decode("utf-8", "backslashreplace")
            raise Refused(f"ERR Unsupported option {shown}")
    if b"NX" in options and (b"XX" in options or b"GT" in options or b"LT" in options):
        raise Refused("ERR NX and XX, GT or LT options at the same time are not compatible")
    if b"GT" in options and b"LT" in options:
        raise Refused("ERR GT and LT options at the same time are not compatible")
    return options


def _may_change(options: list[bytes], before_ms: int, after_ms: int) -> bool:
    """A key without an end counts as one that ends last of all."""
    if b"NX" in options and before_ms:
        return False
    if b"XX" in options and not before_ms:
        return False
    if b"GT" in options and (not before_ms or after_ms <= before_ms):
        return False
    return not (b"LT" in options and before_ms and after_ms >= before_ms)


def _time_left(*, factor: int, is_absolute: bool) -> OnKeys:
    def run(turn: Turn, arguments: list[bytes]) -> bytes:
        value = turn.get(arguments[1])
        if value is None:
            return integer(-2)
        if not value.expires_ms:
            return integer(-1)
        if is_absolute:
            return integer((value.expires_ms + factor // 2) // factor)
        return integer((value.expires_ms - turn.now_ms + factor // 2) // factor)

    return run


def persist(turn: Turn, arguments: list[bytes]) -> bytes:
    value = turn.get(arguments[1])
    if value is None or not value.expires_ms:
        return integer(0)
    turn.put(arguments[1], value.data)
    return integer(1)


def getex(turn: Turn, arguments: list[bytes]) -> bytes:
    key, options = arguments[1], arguments[2:]
    word = options[0].upper() if options else b""
    expires_ms = 0
    if len(options) == 2 and is_expiry_word(word):
        expires_ms = moment(turn, word, options[1], "getex")
    elif options and (word != b"PERSIST" or len(options) != 1):
        raise Refused(SYNTAX)
    value = turn.get(key)
    if value is not None and options and expires_ms != value.expires_ms:
        turn.put(key, value.data, expires_ms)
    return turn.dialect.maybe(None if value is None else value.data)


COMMANDS: Final = (
    writing("expire", -3, _expire("expire", b"EX"), "Ends a key in seconds", group="generic"),
    writing("pexpire", -3, _expire("pexpire", b"PX"), "Ends a key in ms", group="generic"),
    writing("expireat", -3, _expire("expireat", b"EXAT"), "Ends a key then", group="generic"),
    writing("pexpireat", -3, _expire("pexpireat", b"PXAT"), "Ends a key then", group="generic"),
    writing("persist", 2, persist, "Takes the end off a key", group="generic"),
    writing("getex", -2, getex, "Reads a key and says when it ends"),
    reading("ttl", 2, _time_left(factor=1000, is_absolute=False), "Seconds left", group="generic"),
    reading("pttl", 2, _time_left(factor=1, is_absolute=False), "ms left", group="generic"),
    reading(
        "expiretime", 2, _time_left(factor=1000, is_absolute=True), "When it ends", group="generic"
    ),
    reading(
        "pexpiretime", 2, _time_left(factor=1, is_absolute=True), "When it ends", group="generic"
    ),
)
