"""The metastore's commands, as a target for a mutator: decoded, and applied to a small state."""

from contextlib import suppress

from raftwood.base.errors import InvalidInput, RaftwoodError
from raftwood.base.seams import Compare, RemoveKey, SetKey
from raftwood.metastore import commands
from raftwood.metastore.commands import (
    Command,
    ExpireLeases,
    GrantLease,
    KeepAlive,
    RevokeLease,
    Transact,
)
from raftwood.metastore.rules import MetastoreState


def target(data: bytes) -> None:
    """What is taken means the same when it is said again; all else is InvalidInput."""
    try:
        command = commands.decode_command(data)
    except InvalidInput:
        return
    assert commands.decode_command(commands.encode(command)) == command
    state = MetastoreState()
    with suppress(RaftwoodError):  # as it may be told; anything else would be a bug
        commands.decode_result(state.apply(data, 1))
    assert MetastoreState.restored(state.snapshot()).snapshot() == state.snapshot()


def seeds() -> list[bytes]:
    """Valid inputs for `target`."""
    sets = (SetKey("shards/1", b"node-a"), SetKey("owners/ü", b"", 3), RemoveKey("gone"))
    found: list[Command] = [
        Transact((), ()),
        Transact((Compare("shards/1", 7), Compare("gone", 0)), sets, (RemoveKey("shards/1"),)),
        Transact((), sets[:1]),
        GrantLease(10_000),
        KeepAlive(1 << 40),
        RevokeLease(3),
        ExpireLeases(),
    ]
    return [commands.encode(command) for command in found]
