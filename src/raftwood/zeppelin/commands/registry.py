"""All commands by name, and COMMAND, which tells clients of them."""

from collections.abc import Iterable
from typing import Final

from raftwood.zeppelin.commands import (
    binlog,
    bulk,
    checkpoint,
    cluster,
    connection,
    expiry,
    keys,
    numbers,
    once,
    server,
    strings,
    transactions,
    whole,
)
from raftwood.zeppelin.commands.patterns import Pattern
from raftwood.zeppelin.commands.refusals import Refused, unknown_subcommand, wrong_number
from raftwood.zeppelin.commands.session import Session
from raftwood.zeppelin.commands.table import Command, serving
from raftwood.zeppelin.resp.answers import EMPTY_ARRAY, array, bulks, integer, simple, text


def _about(session: Session, command: Command) -> bytes:
    """The ten fields of Redis 7; some clients count on all of them."""
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


def command(session: Session, arguments: list[bytes]) -> bytes:
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


def _named(names: list[bytes]) -> Iterable[Command | None]:
    return map(find, names) if names else COMMANDS.values()


def _docs(session: Session, command: Command) -> bytes:
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
        raise Refused("ERR syntax error")
    return [name.encode() for name in COMMANDS]


def _keys_of(words: list[bytes]) -> list[bytes]:
    if not words:
        raise wrong_number("command|getkeys")
    command = find(words[0])
    if command is None:
        raise Refused("ERR Invalid command specified")
    if not command.first_key:
        raise Refused("ERR The command has no key arguments")
    command.check(words)
    return list(command.keys(words))


COMMANDS: Final[dict[str, Command]] = {
    each.name: each
    for each in (
        *strings.COMMANDS,
        *numbers.COMMANDS,
        *expiry.COMMANDS,
        *keys.COMMANDS,
        *whole.COMMANDS,
        *bulk.COMMANDS,
        *binlog.COMMANDS,
        *checkpoint.COMMANDS,
        *transactions.COMMANDS,
        *once.COMMANDS,
        *connection.COMMANDS,
        *cluster.COMMANDS,
        *server.COMMANDS,
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
"""Those on one key, which is their first argument."""


def find(word: bytes) -> Command | None:
    """In whatever case."""
    return _BY_WORD.get(word) or _BY_WORD.get(word.upper())
