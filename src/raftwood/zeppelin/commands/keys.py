"""Commands on keys whatever their values are, and on all keys that have a tag."""

from itertools import islice
from typing import Final

from raftwood.zeppelin.commands.numbers import as_integer
from raftwood.zeppelin.commands.patterns import Pattern
from raftwood.zeppelin.commands.refusals import (
    SYNTAX,
    Refused,
    unknown_subcommand,
    wrong_number,
)
from raftwood.zeppelin.commands.table import Command, reading, writing
from raftwood.zeppelin.commands.turn import Turn
from raftwood.zeppelin.resp.answers import bulk, integer, simple, text

TAG_LISTED_MAX: Final = 10_000
TAG_DELETED_MAX: Final = 100_000
_EMBEDDED_BYTES_MAX: Final = 44
_OVERHEAD_BYTES: Final = 56


def delete(turn: Turn, arguments: list[bytes]) -> bytes:
    return integer(sum(map(turn.delete, arguments[1:])))


def exists(turn: Turn, arguments: list[bytes]) -> bytes:
    return integer(sum(turn.get(key) is not None for key in arguments[1:]))


def type_(turn: Turn, arguments: list[bytes]) -> bytes:
    return simple("none" if turn.get(arguments[1]) is None else "string")


def object_(turn: Turn, arguments: list[bytes]) -> bytes:
    word = arguments[1].upper()
    if word not in (b"ENCODING", b"FREQ", b"IDLETIME", b"REFCOUNT"):
        raise unknown_subcommand("OBJECT", arguments[1])
    if len(arguments) != 3:
        raise wrong_number(f"object|{word.decode().lower()}")
    data = turn.data_of(arguments[2])
    if data is None:
        return turn.dialect.null
    if word == b"ENCODING":
        return text(_encoding(data))
    if word == b"FREQ":
        raise Refused(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please "
            "note that when switching between policies at runtime LRU and LFU data will take some "
            "time to adjust."
        )
    return integer(1 if word == b"REFCOUNT" else 0)


def _encoding(data: bytes) -> str:
    try:
        as_integer(data)
    except Refused:
        return "embstr" if len(data) <= _EMBEDDED_BYTES_MAX else "raw"
    return "int"


def memory(turn: Turn, arguments: list[bytes]) -> bytes:
    if arguments[1].upper() != b"USAGE":
        raise unknown_subcommand("MEMORY", arguments[1])
    if len(arguments) not in (3, 5):
        raise wrong_number("memory|usage")
    data = turn.data_of(arguments[2])
    if data is None:
        return turn.dialect.null
    return integer(len(arguments[2]) + len(data) + _OVERHEAD_BYTES)


def tag_del(turn: Turn, arguments: list[bytes]) -> bytes:
    """Our own, `TAG DEL tag`: all of them at once, or none."""
    found = [key for key, _ in islice(turn.with_tag(arguments[2]), TAG_DELETED_MAX + 1)]
    if len(found) > TAG_DELETED_MAX:
        raise Refused(
            f"ERR more than {TAG_DELETED_MAX} keys have this tag: delete some by their names first"
        )
    for key in found:
        turn.delete(key)
    return integer(len(found))


def tag_list(turn: Turn, arguments: list[bytes]) -> bytes:
    """Our own, `TAG LIST tag [MATCH pattern] [COUNT n]`: keys and values."""
    options = arguments[3:]
    pattern, count = Pattern(b"*"), 0
    if len(options) % 2:
        raise Refused(SYNTAX)
    for option, value in zip(options[::2], options[1::2], strict=True):
        match option.upper():
            case b"MATCH":
                pattern = Pattern(value)
            case b"COUNT":
                count = as_integer(value)
                if not 1 <= count <= TAG_LISTED_MAX:
                    raise Refused(f"ERR COUNT is 1 to {TAG_LISTED_MAX}")
            case _:
                raise Refused(SYNTAX)
    found = ((key, data) for key, data in turn.with_tag(arguments[2]) if pattern.matches(key))
    listed = list(islice(found, count or TAG_LISTED_MAX + 1))
    if len(listed) > TAG_LISTED_MAX:
        raise Refused(f"ERR more than {TAG_LISTED_MAX} keys have this tag: give MATCH or COUNT")
    return turn.dialect.map((bulk(key), bulk(data)) for key, data in listed)


COMMANDS: Final = (
    writing("del", -2, delete, "Deletes keys", keys=(1, -1, 1), group="generic"),
    writing("unlink", -2, delete, "Deletes keys", keys=(1, -1, 1), group="generic"),
    reading("exists", -2, exists, "How many of the keys exist", keys=(1, -1, 1), group="generic"),
    reading("touch", -2, exists, "How many of the keys exist", keys=(1, -1, 1), group="generic"),
    reading("type", 2, type_, "What kind of value a key has", group="generic"),
    reading("object", -3, object_, "How a value is kept", keys=(2, 2, 1), group="generic"),
    reading("memory", -3, memory, "What a key takes", keys=(2, 2, 1), group="server"),
    Command(
        name="tag",
        arity=-3,
        flags=("write",),
        first_key=2,
        last_key=2,
        key_step=1,
        group="generic",
        summary="Lists or deletes all keys with a tag",
        subcommands={
            b"LIST": reading("tag|list", -3, tag_list, "Lists all with a tag", keys=(2, 2, 1)),
            b"DEL": writing("tag|del", 3, tag_del, "Deletes all with a tag", keys=(2, 2, 1)),
        },
    ),
)
