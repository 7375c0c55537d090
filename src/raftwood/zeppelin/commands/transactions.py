"""MULTI, EXEC and WATCH: commands on one slot that happen together, as one record."""

from typing import Final

from raftwood.zeppelin.commands.refusals import CROSSSLOT, DONE, Refused
from raftwood.zeppelin.commands.session import Session, Transaction
from raftwood.zeppelin.commands.table import Command, serving
from raftwood.zeppelin.commands.turn import KEY_TOO_LARGE, Turn
from raftwood.zeppelin.node.seams import KEY_BYTES_MAX
from raftwood.zeppelin.node.view import PartitionCopy
from raftwood.zeppelin.resp.answers import EMPTY_ARRAY, OK, array, error
from raftwood.zeppelin.slots import are_in_slot, slot_of

QUEUED: Final = b"+QUEUED\r\n"
TRANSACTION_COMMANDS_MAX: Final = 10_000
TRANSACTION_BYTES_MAX: Final = 32 << 20


def slot_of_keys(command: Command, arguments: list[bytes]) -> int:
    """The one slot of all keys of a command that has some."""
    first = arguments[command.first_key]
    if command.last_key == command.first_key:
        if len(first) > KEY_BYTES_MAX:
            raise Refused(KEY_TOO_LARGE)
        return slot_of(first)
    keys = command.keys(arguments)
    if max(map(len, keys)) > KEY_BYTES_MAX:
        raise Refused(KEY_TOO_LARGE)
    slot = slot_of(first)
    if not are_in_slot(keys, slot):
        raise Refused(CROSSSLOT)
    return slot


def enqueue(
    session: Session, transaction: Transaction, command: Command, words: list[bytes]
) -> bytes:
    """Keep a command for EXEC; one that is refused breaks the transaction."""
    if command.on_keys is None:
        raise Refused("ERR Command not allowed inside a transaction")
    slot = slot_of_keys(command, words)
    if transaction.slot not in (-1, slot):
        raise Refused(CROSSSLOT)
    session.copy_of(slot, is_write=False)
    transaction.size += sum(map(len, words))
    if (
        transaction.size > TRANSACTION_BYTES_MAX
        or len(transaction.commands) >= TRANSACTION_COMMANDS_MAX
    ):
        raise Refused(
            f"ERR a transaction has at most {TRANSACTION_COMMANDS_MAX} commands and "
            f"{TRANSACTION_BYTES_MAX} bytes"
        )
    transaction.slot = slot
    transaction.commands.append((command, words))
    return QUEUED


def multi(session: Session, _: list[bytes]) -> bytes:
    if session.transaction is not None:
        raise Refused("ERR MULTI calls can not be nested")
    session.transaction = Transaction()
    return OK


def discard(session: Session, _: list[bytes]) -> bytes:
    if session.transaction is None:
        raise Refused("ERR DISCARD without MULTI")
    session.transaction = None
    session.unwatch()
    return OK


def exec_(session: Session, _: list[bytes]) -> bytes:
    transaction = session.transaction
    if transaction is None:
        raise Refused("ERR EXEC without MULTI")
    if transaction.is_broken:
        discard(session, [])
        raise Refused("EXECABORT Transaction discarded because of previous errors.")
    is_write = any(command.is_write for command, _ in transaction.commands)
    if is_write:
        session.check_may_write("exec")
    # Nothing is given up yet where the partition, or its disk, makes EXEC wait and try again.
    copy = session.copy_of(transaction.slot, is_write=is_write) if transaction.commands else None
    if copy is not None and session.sequence_done(copy) is not None:
        discard(session, [])
        raise Refused(DONE)
    answer = session.dialect.null_array
    if session.may_execute():
        answer = EMPTY_ARRAY if copy is None else _executed(session, transaction, copy)
    discard(session, [])
    return answer


def _executed(session: Session, transaction: Transaction, copy: PartitionCopy) -> bytes:
    turn = Turn(copy, session.dialect, now_ms=session.now_ms)
    answers = [_answer(turn, command, arguments) for command, arguments in transaction.commands]
    session.expect_read(copy, turn.seen)
    if turn.writes:
        session.commit(copy, turn.outcome())
    return array(answers)


def _answer(turn: Turn, command: Command, arguments: list[bytes]) -> bytes:
    assert command.on_keys is not None
    try:
        return command.on_keys(turn, arguments)
    except Refused as refusal:
        # As in Redis the others are executed nevertheless; what is refused has written nothing.
        return error(refusal.message)


def watch(session: Session, arguments: list[bytes]) -> bytes:
    if session.transaction is not None:
        raise Refused("ERR WATCH inside MULTI is not allowed")
    slots = [slot_of(key) for key in arguments[1:]]
    if any(slot != slots[0] for slot in slots):
        raise Refused(CROSSSLOT)
    copy = session.copy_of(slots[0], is_write=False)
    for key in arguments[1:]:
        session.watch(copy, key)
    return OK


def unwatch(session: Session, _: list[bytes]) -> bytes:
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
