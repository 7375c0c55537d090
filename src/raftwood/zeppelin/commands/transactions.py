"""Transactions (MULTI, EXEC, WATCH), and ONCE, which names a write so that it may be repeated.

`ONCE producer number` stands before a command. The record of the command carries that name. A known
name is not executed again: the client gets the answer of its first attempt. Our own client names
all writes, so that a repeated one (the connection ended, the master died) counts once.
"""

from typing import Final

from raftwood.base.errors import OutOfRange
from raftwood.zeppelin.commands.command import (
    CROSSSLOT,
    DONE,
    KEY_TOO_LARGE,
    RedisCommand,
    RedisError,
    Turn,
    serving,
)
from raftwood.zeppelin.commands.numbers import as_integer
from raftwood.zeppelin.commands.session import KvSession, Transaction
from raftwood.zeppelin.node.view import PartitionCopy
from raftwood.zeppelin.records import KEY_BYTES_MAX, KeyWrite, PartitionStore, decode_record
from raftwood.zeppelin.resp import EMPTY_ARRAY, OK, array, bulk, error, integer
from raftwood.zeppelin.slots import are_in_slot, slot_of

PRODUCER_BYTES_MAX: Final = 64

_NUMBERS: Final = ("incr", "decr", "incrby", "decrby")
_LENGTHS: Final = ("append", "setrange")
_COUNTS: Final = ("del", "unlink", "tag|del")
_DONE: Final = ("set", "mset", "setex", "psetex")
_TAKES_OLD: Final = ("getset", "getdel", "getex")


def once(session: KvSession, arguments: list[bytes]) -> bytes:
    if not 1 <= len(arguments[1]) <= PRODUCER_BYTES_MAX:
        raise RedisError(f"ERR a producer's name has 1 to {PRODUCER_BYTES_MAX} bytes")
    number = as_integer(arguments[2])
    if number < 0:
        raise RedisError("ERR a request's number is 0 or more")
    session.origin = (arguments[1], number)
    return OK


async def writes_of(store: PartitionStore, sequence: int) -> tuple[KeyWrite, ...]:
    """Returns a record's writes; refuses with `DONE` if only its name is here, in a copied
    engine.
    """
    try:
        encoded = await store.records(first=sequence, bytes_max=1)
    except OutOfRange:
        raise RedisError(DONE) from None
    return decode_record(encoded[0]).writes


def answer_again(name: str, arguments: list[bytes], writes: tuple[KeyWrite, ...]) -> bytes:
    """Rebuilds a command's answer from its record's writes; `DONE` if they do not tell it."""
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


ONCE_COMMANDS: Final = (
    serving("once", 3, once, "The next command is done once", group="generic", flags=("fast",)),
)


# MULTI, EXEC and WATCH: commands on one slot that happen together, as one record.

QUEUED: Final = b"+QUEUED\r\n"
TRANSACTION_COMMANDS_MAX: Final = 10_000
TRANSACTION_BYTES_MAX: Final = 32 << 20


def slot_of_keys(command: RedisCommand, arguments: list[bytes]) -> int:
    """Returns the one slot of all keys of a command."""
    first = arguments[command.first_key]
    if command.last_key == command.first_key:
        if len(first) > KEY_BYTES_MAX:
            raise RedisError(KEY_TOO_LARGE)
        return slot_of(first)
    keys = command.keys(arguments)
    if max(map(len, keys)) > KEY_BYTES_MAX:
        raise RedisError(KEY_TOO_LARGE)
    slot = slot_of(first)
    if not are_in_slot(keys, slot):
        raise RedisError(CROSSSLOT)
    return slot


def enqueue(
    session: KvSession, transaction: Transaction, command: RedisCommand, words: list[bytes]
) -> bytes:
    """Stores a command for EXEC; a refused command breaks the transaction."""
    if command.on_keys is None:
        raise RedisError("ERR Command not allowed inside a transaction")
    slot = slot_of_keys(command, words)
    if transaction.slot not in (-1, slot):
        raise RedisError(CROSSSLOT)
    session.copy_of(slot, is_write=False)
    transaction.size += sum(map(len, words))
    if (
        transaction.size > TRANSACTION_BYTES_MAX
        or len(transaction.commands) >= TRANSACTION_COMMANDS_MAX
    ):
        raise RedisError(
            f"ERR a transaction has at most {TRANSACTION_COMMANDS_MAX} commands and "
            f"{TRANSACTION_BYTES_MAX} bytes"
        )
    transaction.slot = slot
    transaction.commands.append((command, words))
    return QUEUED


def multi(session: KvSession, _: list[bytes]) -> bytes:
    if session.transaction is not None:
        raise RedisError("ERR MULTI calls can not be nested")
    session.transaction = Transaction()
    return OK


def discard(session: KvSession, _: list[bytes]) -> bytes:
    if session.transaction is None:
        raise RedisError("ERR DISCARD without MULTI")
    session.transaction = None
    session.unwatch()
    return OK


def exec_(session: KvSession, _: list[bytes]) -> bytes:
    transaction = session.transaction
    if transaction is None:
        raise RedisError("ERR EXEC without MULTI")
    if transaction.is_broken:
        discard(session, [])
        raise RedisError("EXECABORT Transaction discarded because of previous errors.")
    is_write = any(command.is_write for command, _ in transaction.commands)
    if is_write:
        session.check_may_write("exec")
    # Until here nothing is changed: the partition or its disk may make EXEC wait and try again.
    copy = session.copy_of(transaction.slot, is_write=is_write) if transaction.commands else None
    if copy is not None and session.sequence_done(copy) is not None:
        discard(session, [])
        raise RedisError(DONE)
    answer = session.dialect.null_array
    if session.may_execute():
        answer = EMPTY_ARRAY if copy is None else _executed(session, transaction, copy)
    discard(session, [])
    return answer


def _executed(session: KvSession, transaction: Transaction, copy: PartitionCopy) -> bytes:
    turn = Turn(copy, session.dialect, now_ms=session.now_ms)
    answers = [_answer(turn, command, arguments) for command, arguments in transaction.commands]
    session.expect_read(copy, turn.seen)
    if turn.writes:
        session.commit(copy, turn.outcome())
    return array(answers)


def _answer(turn: Turn, command: RedisCommand, arguments: list[bytes]) -> bytes:
    assert command.on_keys is not None
    try:
        return command.on_keys(turn, arguments)
    except RedisError as refusal:
        # As in Redis the others still run; a refused command has written nothing.
        return error(refusal.message)


def watch(session: KvSession, arguments: list[bytes]) -> bytes:
    if session.transaction is not None:
        raise RedisError("ERR WATCH inside MULTI is not allowed")
    slots = [slot_of(key) for key in arguments[1:]]
    if any(slot != slots[0] for slot in slots):
        raise RedisError(CROSSSLOT)
    copy = session.copy_of(slots[0], is_write=False)
    for key in arguments[1:]:
        session.watch(copy, key)
    return OK


def unwatch(session: KvSession, _: list[bytes]) -> bytes:
    session.unwatch()
    return OK


_GROUP: Final = "transactions"
COMMANDS: Final = (
    serving("multi", 1, multi, "Begins a transaction", group=_GROUP, flags=("fast",)),
    serving("exec", 1, exec_, "Executes a transaction", group=_GROUP),
    serving("discard", 1, discard, "Gives a transaction up", group=_GROUP, flags=("fast",)),
    serving("watch", -2, watch, "Executes only if keys stay", group=_GROUP, keys=(1, -1, 1)),
    serving("unwatch", 1, unwatch, "Watches nothing any more", group=_GROUP, flags=("fast",)),
)
