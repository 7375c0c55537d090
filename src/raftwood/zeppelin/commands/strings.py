"""Commands on the values of keys, and on their times to live.

Clients give times to live in seconds or milliseconds, relative or absolute; they are stored as
absolute times in ms. Replicas and later readers get a moment, never a span, so it does not matter
when they read.
"""

from typing import Final

import msgspec

from raftwood.zeppelin.commands.command import (
    EXPIRY_MS_MAX,
    SYNTAX,
    TOO_LARGE,
    VALUE_BYTES_MAX,
    OnKeys,
    RedisError,
    Turn,
    invalid_expire,
    reading,
    writing,
    wrong_number,
)
from raftwood.zeppelin.commands.numbers import as_integer
from raftwood.zeppelin.resp import OK, array, bulk, integer

_SPANS: Final = {b"EX": (1000, True), b"PX": (1, True), b"EXAT": (1000, False), b"PXAT": (1, False)}
"""Factor to milliseconds, and whether the time is relative to now."""


def is_expiry_word(word: bytes) -> bool:
    return word in _SPANS


def moment(turn: Turn, word: bytes, number: bytes, command: str) -> int:
    """Returns the moment of `EX 10` and the like, which must exist and be after 1970."""
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
        # A record can also hold a time that has passed: it deletes the key.
        turn.put(arguments[1], value.data, max(expires_ms, 1))
        return integer(1)

    return run


def _options(words: list[bytes]) -> list[bytes]:
    options = [word.upper() for word in words]
    for option in options:
        if option not in (b"NX", b"XX", b"GT", b"LT"):
            shown = words[options.index(option)].decode("utf-8", "backslashreplace")
            raise RedisError(f"ERR Unsupported option {shown}")
    if b"NX" in options and (b"XX" in options or b"GT" in options or b"LT" in options):
        raise RedisError("ERR NX and XX, GT or LT options at the same time are not compatible")
    if b"GT" in options and b"LT" in options:
        raise RedisError("ERR GT and LT options at the same time are not compatible")
    return options


def _may_change(options: list[bytes], before_ms: int, after_ms: int) -> bool:
    """Applies NX, XX, GT and LT; a key that does not expire counts as expiring last."""
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
        raise RedisError(SYNTAX)
    value = turn.get(key)
    if value is not None and options and expires_ms != value.expires_ms:
        turn.put(key, value.data, expires_ms)
    return turn.dialect.maybe(None if value is None else value.data)


EXPIRY_COMMANDS: Final = (
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


# Commands on the values of keys: read, replace, compare, cut.


class _SetOptions(msgspec.Struct):
    expires_ms: int = 0
    condition: bytes = b""
    """NX or XX."""
    keeps_time: bool = False
    answers_old: bool = False


def _set_options(turn: Turn, words: list[bytes], command: str) -> _SetOptions:
    options = _SetOptions()
    has_time = False
    at = 0
    while at < len(words):
        word = words[at].upper()
        if word in (b"NX", b"XX") and options.condition in (b"", word) and command == "set":
            options.condition = word
        elif word == b"GET" and command == "set":
            options.answers_old = True
        elif word == b"KEEPTTL" and not has_time:
            options.keeps_time = has_time = True
        elif is_expiry_word(word) and not has_time and at + 1 < len(words):
            at += 1
            options.expires_ms = moment(turn, word, words[at], command)
            has_time = True
        else:
            raise RedisError(SYNTAX)
        at += 1
    return options


def get(turn: Turn, arguments: list[bytes]) -> bytes:
    return turn.dialect.maybe(turn.data_of(arguments[1]))


def set_(turn: Turn, arguments: list[bytes]) -> bytes:
    key = arguments[1]
    if len(arguments) == 3:
        turn.put(key, arguments[2])
        return OK
    options = _set_options(turn, arguments[3:], "set")
    old = turn.get(key)
    is_refused = (options.condition == b"NX" and old is not None) or (
        options.condition == b"XX" and old is None
    )
    if not is_refused:
        kept_ms = old.expires_ms if old is not None and options.keeps_time else 0
        turn.put(key, arguments[2], options.expires_ms or kept_ms)
    if options.answers_old:
        return turn.dialect.maybe(None if old is None else old.data)
    return turn.dialect.null if is_refused else OK


def cas(turn: Turn, arguments: list[bytes]) -> bytes:
    """Our own: replaces a value if it equals the expected one."""
    key, expected, data = arguments[1:4]
    options = _set_options(turn, arguments[4:], "cas")
    old = turn.get(key)
    if old is None or old.data != expected:
        return integer(0)
    turn.put(key, data, options.expires_ms or (old.expires_ms if options.keeps_time else 0))
    return integer(1)


def setnx(turn: Turn, arguments: list[bytes]) -> bytes:
    if turn.get(arguments[1]) is not None:
        return integer(0)
    turn.put(arguments[1], arguments[2])
    return integer(1)


def setex(turn: Turn, arguments: list[bytes]) -> bytes:
    turn.put(arguments[1], arguments[3], moment(turn, b"EX", arguments[2], "setex"))
    return OK


def psetex(turn: Turn, arguments: list[bytes]) -> bytes:
    turn.put(arguments[1], arguments[3], moment(turn, b"PX", arguments[2], "psetex"))
    return OK


def getset(turn: Turn, arguments: list[bytes]) -> bytes:
    old = turn.data_of(arguments[1])
    turn.put(arguments[1], arguments[2])
    return turn.dialect.maybe(old)


def getdel(turn: Turn, arguments: list[bytes]) -> bytes:
    old = turn.data_of(arguments[1])
    turn.delete(arguments[1])
    return turn.dialect.maybe(old)


def mget(turn: Turn, arguments: list[bytes]) -> bytes:
    maybe, data_of = turn.dialect.maybe, turn.data_of
    return array([maybe(data_of(key)) for key in arguments[1:]])


def mset(turn: Turn, arguments: list[bytes]) -> bytes:
    if len(arguments) % 2 == 0:
        raise wrong_number("mset")
    put = turn.put
    for key, data in zip(arguments[1::2], arguments[2::2], strict=True):
        put(key, data)
    return OK


def msetnx(turn: Turn, arguments: list[bytes]) -> bytes:
    if len(arguments) % 2 == 0:
        raise wrong_number("msetnx")
    if any(turn.get(key) is not None for key in arguments[1::2]):
        return integer(0)
    mset(turn, arguments)
    return integer(1)


def append(turn: Turn, arguments: list[bytes]) -> bytes:
    value = turn.get(arguments[1])
    old, expires_ms = (b"", 0) if value is None else (value.data, value.expires_ms)
    turn.put(arguments[1], old + arguments[2], expires_ms)
    return integer(len(old) + len(arguments[2]))


def strlen(turn: Turn, arguments: list[bytes]) -> bytes:
    return integer(len(turn.data_of(arguments[1]) or b""))


def getrange(turn: Turn, arguments: list[bytes]) -> bytes:
    first, last = as_integer(arguments[2]), as_integer(arguments[3])
    data = turn.data_of(arguments[1]) or b""
    if first < 0 and last < 0 and first > last:
        return bulk(b"")
    first = max(first + len(data), 0) if first < 0 else first
    last = max(last + len(data), 0) if last < 0 else last
    return bulk(data[first : last + 1])


def setrange(turn: Turn, arguments: list[bytes]) -> bytes:
    offset, piece = as_integer(arguments[2]), arguments[3]
    if offset < 0:
        raise RedisError("ERR offset is out of range")
    value = turn.get(arguments[1])
    old, expires_ms = (b"", 0) if value is None else (value.data, value.expires_ms)
    if not piece:
        return integer(len(old))
    if offset + len(piece) > VALUE_BYTES_MAX:
        raise RedisError(TOO_LARGE)
    data = b"".join((old[:offset].ljust(offset, b"\0"), piece, old[offset + len(piece) :]))
    turn.put(arguments[1], data, expires_ms)
    return integer(len(data))


COMMANDS: Final = (
    reading("get", 2, get, "The value of a key"),
    writing("set", -3, set_, "Gives a key a value"),
    writing("cas", -4, cas, "Gives a key a value if it has the one that is expected"),
    writing("setnx", 3, setnx, "Gives a key a value if it has none"),
    writing("setex", 4, setex, "Gives a key a value for some seconds"),
    writing("psetex", 4, psetex, "Gives a key a value for some milliseconds"),
    writing("getset", 3, getset, "Replaces a value, and answers the old one"),
    writing("getdel", 2, getdel, "Deletes a key, and answers its value"),
    reading("mget", -2, mget, "The values of keys", keys=(1, -1, 1)),
    writing("mset", -3, mset, "Gives keys values", keys=(1, -1, 2)),
    writing("msetnx", -3, msetnx, "Gives keys values if none has one", keys=(1, -1, 2)),
    writing("append", 3, append, "Adds to the end of a value"),
    reading("strlen", 2, strlen, "How long a value is"),
    reading("getrange", 4, getrange, "A piece of a value"),
    writing("setrange", 4, setrange, "Replaces a piece of a value"),
)
