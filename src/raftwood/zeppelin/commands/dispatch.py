"""Executes requests: the table of all commands, and how one of them runs."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Final

from raftwood.base.errors import InternalError, RaftwoodError
from raftwood.zeppelin.commands import (
    binlog,
    bulk,
    checkpoint,
    cluster,
    connection,
    keys,
    numbers,
    strings,
    transactions,
)
from raftwood.zeppelin.commands import connection as connection_module
from raftwood.zeppelin.commands import keys as keys_module
from raftwood.zeppelin.commands import strings as strings_module
from raftwood.zeppelin.commands import transactions as transactions_module
from raftwood.zeppelin.commands.command import (
    NOBODY_SERVES,
    Answer,
    RedisCommand,
    RedisError,
    Turn,
    serving,
    unknown_command,
    unknown_subcommand,
    wrong_number,
)
from raftwood.zeppelin.commands.keys import Pattern
from raftwood.zeppelin.commands.session import KvSession, PartitionFrozen
from raftwood.zeppelin.commands.transactions import answer_again, enqueue, slot_of_keys, writes_of
from raftwood.zeppelin.node.view import PartitionCopy
from raftwood.zeppelin.records import Value
from raftwood.zeppelin.resp import EMPTY_ARRAY, Dialect, array, bulks, error, integer, simple, text


def _about(session: KvSession, command: RedisCommand) -> bytes:
    """Returns the ten fields of Redis 7; some clients need all of them."""
    dialect = session.dialect
    return array(
        [
            text(command.name),
            integer(command.arity),
            dialect.set([simple(flag) for flag in command.flags]),
            integer(command.first_key),
            integer(command.last_key),
            integer(command.key_step),
            dialect.set([simple(f"@{command.group}")]),
            EMPTY_ARRAY,
            EMPTY_ARRAY,
            EMPTY_ARRAY,
        ]
    )


def command(session: KvSession, arguments: list[bytes]) -> bytes:
    if len(arguments) == 1:
        return array([_about(session, each) for each in COMMANDS.values()])
    names = arguments[2:]
    match arguments[1].upper():
        case b"COUNT":
            return integer(len(COMMANDS))
        case b"INFO":
            return array(
                [
                    session.dialect.null_array if each is None else _about(session, each)
                    for each in _named(names)
                ]
            )
        case b"DOCS":
            return session.dialect.map(
                (text(each.name), _docs(session, each)) for each in _named(names) if each
            )
        case b"LIST":
            return bulks(_listed(names))
        case b"GETKEYS":
            return bulks(_keys_of(names))
    raise unknown_subcommand("COMMAND", arguments[1])


def _named(names: list[bytes]) -> Iterable[RedisCommand | None]:
    return map(find, names) if names else COMMANDS.values()


def _docs(session: KvSession, command: RedisCommand) -> bytes:
    return session.dialect.map(
        [
            (text("summary"), text(command.summary)),
            (text("since"), text("1.0.0")),
            (text("group"), text(command.group)),
        ]
    )


def _listed(words: list[bytes]) -> list[bytes]:
    if len(words) == 3 and [word.upper() for word in words[:2]] == [b"FILTERBY", b"PATTERN"]:
        pattern = Pattern(words[2].lower())
        return [name for name in map(str.encode, COMMANDS) if pattern.matches(name)]
    if words:
        raise RedisError("ERR syntax error")
    return [name.encode() for name in COMMANDS]


def _keys_of(words: list[bytes]) -> list[bytes]:
    if not words:
        raise wrong_number("command|getkeys")
    command = find(words[0])
    if command is None:
        raise RedisError("ERR Invalid command specified")
    if not command.first_key:
        raise RedisError("ERR The command has no key arguments")
    command.check(words)
    return list(command.keys(words))


COMMANDS: Final[dict[str, RedisCommand]] = {
    each.name: each
    for each in (
        *strings.COMMANDS,
        *numbers.COMMANDS,
        *strings_module.EXPIRY_COMMANDS,
        *keys.COMMANDS,
        *keys_module.TABLE_COMMANDS,
        *bulk.COMMANDS,
        *binlog.COMMANDS,
        *checkpoint.COMMANDS,
        *transactions.COMMANDS,
        *transactions_module.ONCE_COMMANDS,
        *connection.COMMANDS,
        *cluster.COMMANDS,
        *connection_module.SERVER_COMMANDS,
        serving("command", -1, command, "The commands that there are", flags=("fast",)),
    )
}
_BY_WORD: Final = {
    word: each for name, each in COMMANDS.items() for word in (name.encode(), name.upper().encode())
}
SINGLE_KEY: Final = {
    word: each
    for word, each in _BY_WORD.items()
    if each.on_keys is not None and each.first_key == each.last_key == 1
}
"""Commands on one key, which is their first argument."""


def find(word: bytes) -> RedisCommand | None:
    """Returns a command by its name, in upper or lower case."""
    return _BY_WORD.get(word) or _BY_WORD.get(word.upper())


# Executes a request: checks permissions, finds the keys, commits to the binlog.

FROZEN_S_MAX: Final = 1.5
"""How long writes wait for the end of a hand-over, or for a disk that is behind; clients give up
not much later."""
_FROZEN_STEP_S: Final = 0.05
"""A waiting request checks at least this often."""
MANY_KEYS: Final = 8
"""An MGET of more words fetches all values at once, off the loop if they are on the disk."""
_IN_TRANSACTIONS: Final = ("exec", "once", "discard", "multi", "watch", "quit", "reset")


def execute(session: KvSession, arguments: list[bytes]) -> Answer:
    """Returns one command's answer, or its error; an answer that waits raises no refusal either."""
    has_name = session.origin is not None
    try:
        answer = _execute(session, arguments)
    except PartitionFrozen as frozen:
        return _when_thawed(session, arguments, frozen)
    except InternalError:
        raise
    except RaftwoodError as refusal:
        _give_up(session, arguments)
        answer = _refused(refusal)
    if has_name:
        session.origin = None
    return answer if isinstance(answer, bytes) else _answered(session, arguments, answer)


def _give_up(session: KvSession, arguments: list[bytes]) -> None:
    """Ends a transaction whose EXEC is refused: the client begins it anew on the right node."""
    if session.transaction is not None and arguments[0].upper() == b"EXEC":
        session.transaction = None
        session.unwatch()


def _break_transaction(session: KvSession) -> None:
    """Marks a transaction as broken: a command was refused, so EXEC refuses the others."""
    if session.transaction is not None:
        session.transaction.is_broken = True


def _refused(refusal: RaftwoodError) -> bytes:
    is_ours = isinstance(refusal, RedisError)
    return error(refusal.message if is_ours else f"ERR {refusal.message}")


async def _answered(session: KvSession, arguments: list[bytes], answer: Awaitable[bytes]) -> bytes:
    try:
        return await answer
    except PartitionFrozen as frozen:
        # It only reads, so it starts anew.
        return await _when_thawed(session, arguments, frozen)
    except RaftwoodError as refusal:
        return _refused(refusal)


async def _when_thawed(
    session: KvSession, arguments: list[bytes], frozen: PartitionFrozen
) -> bytes:
    """Answers once the partition has a master again; with a redirection if that is another node."""
    loop = asyncio.get_running_loop()
    end = loop.time() + FROZEN_S_MAX
    view, refusal = session.host.view, frozen.refusal
    try:
        with session.host.parking.parked(arguments):
            while (left_s := end - loop.time()) > 0:
                # A disk that has caught up sends no news, so check at intervals.
                await view.wait_for_news(min(_FROZEN_STEP_S, left_s))
                session.begin_turn()
                try:
                    answer = _execute(session, arguments)
                    return answer if isinstance(answer, bytes) else await answer
                except PartitionFrozen as again:
                    refusal = again.refusal
                except RedisError as refused:
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


def _execute(session: KvSession, arguments: list[bytes]) -> Answer:
    transaction = session.transaction
    try:
        command = _permitted(session, arguments)
        if transaction is not None and command.name not in _IN_TRANSACTIONS:
            return enqueue(session, transaction, command, arguments)
    except RedisError:
        _break_transaction(session)
        raise
    if command.on_session is not None:
        return command.on_session(session, arguments)
    return _on_keys(session, command, arguments)


def _permitted(session: KvSession, arguments: list[bytes]) -> RedisCommand:
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
            raise RedisError("NOAUTH Authentication required.")
    elif command.is_write:
        session.check_may_write(command.name)
    return command


def _on_keys(session: KvSession, command: RedisCommand, arguments: list[bytes]) -> Answer:
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
        # A refusal depends on the reads as well.
        session.expect_read(copy, turn.seen)
    if turn.writes:
        session.commit(copy, turn.outcome())
    return answer


async def _again(
    command: RedisCommand, arguments: list[bytes], copy: PartitionCopy, sequence: int
) -> bytes:
    """Returns the answer of a write that was done before, whose record may still be unsynced."""
    return answer_again(command.name, arguments, await writes_of(copy.store, sequence))


def _many_values(session: KvSession, copy: PartitionCopy, keys: list[bytes]) -> Answer:
    """Returns values in memory at once; else fetches all off the loop, while the client waits."""
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
