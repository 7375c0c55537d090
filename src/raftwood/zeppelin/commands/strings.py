"""Commands on the values of keys: read, replace, compare, cut."""

from typing import Final

import msgspec

from raftwood.zeppelin.commands.expiry import is_expiry_word, moment
from raftwood.zeppelin.commands.numbers import as_integer
from raftwood.zeppelin.commands.refusals import (
    SYNTAX,
    TOO_LARGE,
    Refused,
    wrong_number,
)
from raftwood.zeppelin.commands.table import reading, writing
from raftwood.zeppelin.commands.turn import VALUE_BYTES_MAX, Turn
from raftwood.zeppelin.resp.answers import OK, array, bulk, integer


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
            raise Refused(SYNTAX)
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
    """Our own: the value becomes another one if it is what the client thinks."""
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
        raise Refused("ERR offset is out of range")
    value = turn.get(arguments[1])
    old, expires_ms = (b"", 0) if value is None else (value.data, value.expires_ms)
    if not piece:
        return integer(len(old))
    if offset + len(piece) > VALUE_BYTES_MAX:
        raise Refused(TOO_LARGE)
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
