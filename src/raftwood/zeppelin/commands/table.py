"""The form of a command: how it is called, where its keys are, and what runs it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from raftwood.zeppelin.commands.refusals import wrong_number

if TYPE_CHECKING:
    from raftwood.zeppelin.commands.session import Session
    from raftwood.zeppelin.commands.turn import Turn

Answer: TypeAlias = bytes | Awaitable[bytes]
"""One that has to wait stops its client's next commands until it is there."""
OnKeys: TypeAlias = Callable[["Turn", list[bytes]], bytes]
"""Pure: it reads and writes through its turn, and knows nobody."""
OnSession: TypeAlias = Callable[["Session", list[bytes]], Answer]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One command, as COMMAND tells of it."""

    name: str
    arity: int
    """How many words, the name among them; below 0: at least so many."""
    flags: tuple[str, ...] = ()
    first_key: int = 0
    """0: it has none."""
    last_key: int = 0
    """Below 0: counted from the end."""
    key_step: int = 0
    group: str = "string"
    summary: str = ""
    on_keys: OnKeys | None = None
    on_session: OnSession | None = None
    is_write: bool = False
    subcommands: dict[bytes, "Command"] = {}
    """By the second word, where that decides what is done with the keys."""

    def check(self, arguments: Sequence[bytes]) -> None:
        count = len(arguments)
        if count != self.arity if self.arity > 0 else count < -self.arity:
            raise wrong_number(self.name)

    def keys(self, arguments: Sequence[bytes]) -> Sequence[bytes]:
        if not self.first_key:
            return ()
        last = self.last_key if self.last_key >= 0 else len(arguments) + self.last_key
        return arguments[self.first_key : last + 1 : self.key_step]


def reading(
    name: str,
    arity: int,
    run: OnKeys,
    summary: str,
    *,
    keys: tuple[int, int, int] = (1, 1, 1),
    group: str = "string",
) -> Command:
    """A command that reads keys of one slot."""
    return Command(
        name=name,
        arity=arity,
        flags=("readonly",) if keys[1] < 0 else ("readonly", "fast"),
        first_key=keys[0],
        last_key=keys[1],
        key_step=keys[2],
        group=group,
        summary=summary,
        on_keys=run,
    )


def writing(
    name: str,
    arity: int,
    run: OnKeys,
    summary: str,
    *,
    keys: tuple[int, int, int] = (1, 1, 1),
    group: str = "string",
) -> Command:
    """A command that may change keys of one slot."""
    return Command(
        name=name,
        arity=arity,
        flags=("write", "denyoom"),
        first_key=keys[0],
        last_key=keys[1],
        key_step=keys[2],
        group=group,
        summary=summary,
        on_keys=run,
        is_write=True,
    )


def serving(
    name: str,
    arity: int,
    run: OnSession,
    summary: str,
    *,
    group: str = "server",
    flags: tuple[str, ...] = (),
    keys: tuple[int, int, int] = (0, 0, 0),
    is_write: bool = False,
) -> Command:
    """A command that is about the connection, the node or the cluster."""
    return Command(
        name=name,
        arity=arity,
        flags=flags,
        first_key=keys[0],
        last_key=keys[1],
        key_step=keys[2],
        group=group,
        summary=summary,
        on_session=run,
        is_write=is_write,
    )
