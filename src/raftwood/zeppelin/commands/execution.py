"""From a request to its answer: who may do it, where its keys are, what the binlog gets."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final

from raftwood.base.errors import InternalError, RaftwoodError
from raftwood.zeppelin.commands.once import answer_again, writes_of
from raftwood.zeppelin.commands.refusals import (
    NOBODY_SERVES,
    Refused,
    unknown_command,
    unknown_subcommand,
)
from raftwood.zeppelin.commands.registry import find
from raftwood.zeppelin.commands.session import Frozen, Session
from raftwood.zeppelin.commands.table import Answer, Command
from raftwood.zeppelin.commands.transactions import enqueue, slot_of_keys
from raftwood.zeppelin.commands.turn import Turn
from raftwood.zeppelin.node.seams import Value
from raftwood.zeppelin.node.view import PartitionCopy
from raftwood.zeppelin.resp.answers import Dialect, array, error

FROZEN_S_MAX: Final = 1.5
"""Writes wait so long for the end of a hand-over, or for a disk that is behind; clients give up not
much later."""
_FROZEN_STEP_S: Final = 0.05
"""Without news, each that waits looks so often."""
MANY_KEYS: Final = 8
"""So many values are fetched at once, beside the loop where they have to come from the disk."""
_IN_TRANSACTIONS: Final = ("exec", "once", "discard", "multi", "watch", "quit", "reset")


def execute(session: Session, arguments: list[bytes]) -> Answer:
    """One command's answer, an error among them; one that waits never raises a refusal either."""
    has_name = session.origin is not None
    try:
        answer = _execute(session, arguments)
    except Frozen as frozen:
        return _when_thawed(session, arguments, frozen)
    except InternalError:
        raise
    except RaftwoodError as refusal:
        _give_up(session, arguments)
        answer = _refused(refusal)
    if has_name:
        session.origin = None
    return answer if isinstance(answer, bytes) else _answered(session, arguments, answer)


def _give_up(session: Session, arguments: list[bytes]) -> None:
    """A transaction whose EXEC is refused is over: the client begins it anew, where it is sent."""
    if session.transaction is not None and arguments[0].upper() == b"EXEC":
        session.transaction = None
        session.unwatch()


def _break_transaction(session: Session) -> None:
    """A command was refused before EXEC: the others are not executed without it."""
    if session.transaction is not None:
        session.transaction.is_broken = True


def _refused(refusal: RaftwoodError) -> bytes:
    is_ours = isinstance(refusal, Refused)
    return error(refusal.message if is_ours else f"ERR {refusal.message}")


async def _answered(session: Session, arguments: list[bytes], answer: Awaitable[bytes]) -> bytes:
    try:
        return await answer
    except Frozen as frozen:
        # It only reads, and begins anew.
        return await _when_thawed(session, arguments, frozen)
    except RaftwoodError as refusal:
        return _refused(refusal)


async def _when_thawed(session: Session, arguments: list[bytes], frozen: Frozen) -> bytes:
    """The answer once the partition has a master again, be it another one: then that is told."""
    loop = asyncio.get_running_loop()
    end = loop.time() + FROZEN_S_MAX
    view, refusal = session.host.view, frozen.refusal
    try:
        with session.host.parking.parked(arguments):
            while (left_s := end - loop.time()) > 0:
                # A disk that has caught up says nothing: that is looked for.
                await view.wait_for_news(min(_FROZEN_STEP_S, left_s))
                session.begin_turn()
                try:
                    answer = _execute(session, arguments)
                    return answer if isinstance(answer, bytes) else await answer
                except Frozen as again:
                    refusal = again.refusal
                except Refused as refused:
                    if refused.message not in NOBODY_SERVES:
                        raise
                    # The next master may be on its way.
        _break_transaction(session)
        return error(refusal)
    except RaftwoodError as refused:
        _break_transaction(session)
        return _refused(refused)
    finally:
        session.origin = None
        _give_up(session, arguments)


def _execute(session: Session, arguments: list[bytes]) -> Answer:
    transaction = session.transaction
    try:
        command = _permitted(session, arguments)
        if transaction is not None and command.name not in _IN_TRANSACTIONS:
            return enqueue(session, transaction, command, arguments)
    except Refused:
        _break_transaction(session)
        raise
    if command.on_session is not None:
        return command.on_session(session, arguments)
    return _on_keys(session, command, arguments)


def _permitted(session: Session, arguments: list[bytes]) -> Command:
    command = find(arguments[0])
    if command is None:
        raise unknown_command(arguments)
    command.check(arguments)
    if command.subcommands:
        subcommand = command.subcommands.get(arguments[1].upper())
        if subcommand is None:
            raise unknown_subcommand(command.name.upper(), arguments[1])
        command = subcommand
        command.check(arguments)
    session.last_command = command.name
    user = session.user
    if user is None:
        if "no_auth" not in command.flags:
            raise Refused("NOAUTH Authentication required.")
    elif command.is_write:
        session.check_may_write(command.name)
    return command


def _on_keys(session: Session, command: Command, arguments: list[bytes]) -> Answer:
    slot = slot_of_keys(command, arguments)
    copy = session.copy_of(slot, is_write=command.is_write)
    if session.origin is not None and command.is_write:
        sequence = session.sequence_done(copy)
        if sequence is not None:
            return _again(command, arguments, copy, sequence)
    if len(arguments) > MANY_KEYS and command.name == "mget":
        session.expect_read(copy, copy.seen(arguments[1:]))
        return _many_values(session, copy, arguments[1:])
    turn = Turn(copy, session.dialect, now_ms=session.now_ms)
    assert command.on_keys is not None
    try:
        answer = command.on_keys(turn, arguments)
    finally:
        # A refusal tells what was read as well.
        session.expect_read(copy, turn.seen)
    if turn.writes:
        session.commit(copy, turn.outcome())
    return answer


async def _again(
    command: Command, arguments: list[bytes], copy: PartitionCopy, sequence: int
) -> bytes:
    """What a write answered that was done before; it may be on its way to the disk still."""
    return answer_again(command.name, arguments, await writes_of(copy.store, sequence))


def _many_values(session: Session, copy: PartitionCopy, keys: list[bytes]) -> Answer:
    """Values in memory at once; else all are fetched beside the loop, while the client waits."""
    store, dialect = copy.store, session.dialect
    values = store.multi_get_cached(keys, now_ms=session.now_ms)
    if values is not None:
        return _values(dialect, values)

    async def run() -> bytes:
        return _values(dialect, await store.multi_get(keys, now_ms=session.now_ms))

    return run()


def _values(dialect: Dialect, values: Sequence[Value | None]) -> bytes:
    maybe = dialect.maybe
    return array([maybe(None if value is None else value.data) for value in values])
