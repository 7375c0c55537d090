"""Common parts of the stores: how all of them write, and how those with their own state read."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from raftwood.base.errors import InvalidInput
from raftwood.base.seams import (
    Compare,
    KeyChange,
    KeyOperation,
    KeyRange,
    MetaStatus,
    RemoveKey,
    SetKey,
    TransactionOutcome,
    Versioned,
)
from raftwood.metastore import commands
from raftwood.metastore.commands import Command, MetastoreDone
from raftwood.metastore.rules import MetastoreState


class CommandWriter:
    """The writing half of a `MetaStore`; a subclass says how commands are agreed on."""

    async def _execute(self, command: Command) -> bytes:
        """Agrees on a command, applies it, and returns its result."""
        raise NotImplementedError

    async def compare_and_set(
        self, key: str, value: bytes | None, *, version: int, lease: int = 0
    ) -> int | None:
        if value is None and not version:
            raise InvalidInput(f"key {key!r} cannot be removed while it is absent: name a version")
        operation = RemoveKey(key) if value is None else SetKey(key, value, lease)
        outcome = await self.transact((Compare(key, version),), (operation,))
        return outcome.version if outcome.held else None

    async def transact(
        self,
        compares: Sequence[Compare],
        then: Sequence[KeyOperation],
        otherwise: Sequence[KeyOperation] = (),
    ) -> TransactionOutcome:
        command = commands.Transact(tuple(compares), tuple(then), tuple(otherwise))
        return commands.outcome(await self._execute(command))

    async def grant_lease(self, *, ttl_ms: int) -> int:
        result = commands.decode_result(await self._execute(commands.GrantLease(ttl_ms)))
        assert isinstance(result, MetastoreDone)
        return result.lease

    async def keep_alive(self, lease: int) -> None:
        commands.decode_result(await self._execute(commands.KeepAlive(lease)))

    async def revoke_lease(self, lease: int) -> None:
        commands.decode_result(await self._execute(commands.RevokeLease(lease)))


class CommandStore(CommandWriter):
    """A `MetaStore` that applies the commands itself, to a `MetastoreState`.

    A subclass keeps `_state` and calls `_tell_change` after each change of it.
    """

    def __init__(self) -> None:
        self._state = MetastoreState()
        self._changed = asyncio.Event()

    async def _fresh(self) -> MetastoreState:
        """Returns a state that includes everything answered to any caller before this call."""
        raise NotImplementedError

    def _check_open(self) -> None:
        """Raises `ShuttingDown` if the store is closed, or the error that ended it."""
        raise NotImplementedError

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def get(self, key: str) -> Versioned | None:
        return (await self._fresh()).get(key)

    async def range(
        self, *, prefix: str = "", start: str = "", end: str | None = None, limit: int = 1000
    ) -> KeyRange:
        return (await self._fresh()).range(prefix=prefix, start=start, end=end, limit=limit)

    async def watch(
        self, prefix: str, *, after_version: int
    ) -> AsyncIterator[tuple[KeyChange, ...]]:
        await self._fresh()
        while True:
            self._check_open()
            changed = self._changed
            now_at = self._state.version
            for changes in self._state.changes(prefix, after_version=after_version):
                after_version = changes[0].version
                yield changes
            # Nothing below the prefix changed up to there; removals elsewhere may be forgotten.
            after_version = max(after_version, now_at)
            await changed.wait()

    async def status(self) -> MetaStatus:
        return (await self._fresh()).status()
