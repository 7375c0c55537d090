"""Writes that may be sent again: `ONCE producer number` stands before a command, and names it.

The record of the command has that name. Where the name is known already the command is not done
again: the client is answered what its first attempt left. Our own client does so with all writes,
so that one which it had to repeat (the connection ended, the master died) counts once.
"""

from typing import Final

from raftwood.base.errors import OutOfRange
from raftwood.zeppelin.commands.numbers import as_integer
from raftwood.zeppelin.commands.refusals import DONE, Refused
from raftwood.zeppelin.commands.session import Session
from raftwood.zeppelin.commands.table import serving
from raftwood.zeppelin.node.seams import PartitionStore, Write, decode_record
from raftwood.zeppelin.resp.answers import OK, bulk, error, integer

PRODUCER_BYTES_MAX: Final = 64

_NUMBERS: Final = ("incr", "decr", "incrby", "decrby")
_LENGTHS: Final = ("append", "setrange")
_COUNTS: Final = ("del", "unlink", "tag|del")
_DONE: Final = ("set", "mset", "setex", "psetex")
_TAKES_OLD: Final = ("getset", "getdel", "getex")


def once(session: Session, arguments: list[bytes]) -> bytes:
    if not 1 <= len(arguments[1]) <= PRODUCER_BYTES_MAX:
        raise Refused(f"ERR a producer's name has 1 to {PRODUCER_BYTES_MAX} bytes")
    number = as_integer(arguments[2])
    if number < 0:
        raise Refused("ERR a request's number is 0 or more")
    session.origin = (arguments[1], number)
    return OK


async def writes_of(store: PartitionStore, sequence: int) -> tuple[Write, ...]:
    """What a record wrote; `DONE` where it is not here: copies of engines know names alone."""
    try:
        encoded = await store.records(first=sequence, bytes_max=1)
    except OutOfRange:
        raise Refused(DONE) from None
    return decode_record(encoded[0]).writes


def answer_again(name: str, arguments: list[bytes], writes: tuple[Write, ...]) -> bytes:
    """What a command answered whose record has these writes; `DONE` where they don't tell."""
    data = writes[0].data or b"" if writes else b""
    if name in _NUMBERS:
        return integer(as_integer(data))
    if name in _LENGTHS:
        return integer(len(data))
    if name in _COUNTS:
        return integer(len(writes))
    if name in _TAKES_OLD or (name == "set" and b"GET" in map(bytes.upper, arguments[3:])):
        return error(DONE)
    if name in _DONE:
        return OK
    return bulk(data) if name == "incrbyfloat" else integer(1)


COMMANDS: Final = (
    serving("once", 3, once, "The next command is done once", group="generic", flags=("fast",)),
)
