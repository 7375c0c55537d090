"""`Settling`: carries out what a logstore's value says is begun, whoever began it.

Every step can be done again, by several gateways at once: logs are made, sealed and removed by
their names, and each last step is a compare-and-set that finds nothing to do where another has
done it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from raftwood.base.environment import Environment
from raftwood.base.position import Position
from raftwood.base.seams import Logs
from raftwood.loghub.model import Logstore, ShardStatus
from raftwood.loghub.server.metadata import Metadata, logstore_key
from raftwood.loghub.shard_rules import (
    finish_creation,
    finish_delete,
    finish_hand_overs,
    is_settled,
)

LOG_PREFIX: Final = "loghub-"
_AT_ONCE: Final = 16

Forget = Callable[[str, str], Awaitable[None]]
"""Removes what else is kept of a logstore (project, name)."""


class Settling:
    """`forget` is asked before the value of a deleted logstore goes away."""

    def __init__(
        self, environment: Environment, metadata: Metadata, logs: Logs, forget: Forget
    ) -> None:
        self._environment = environment
        self._metadata = metadata
        self._logs = logs
        self._forget = forget
        self._limit = asyncio.Semaphore(_AT_ONCE)

    def new_log(self) -> str:
        """A name that no log has."""
        return f"{LOG_PREFIX}{self._environment.random.randbytes(12).hex()}"

    async def settle(self, project: str, name: str) -> Logstore | None:
        """Finish all that is begun; the value after it, or None where the logstore is gone."""
        key = logstore_key(project, name)
        while True:
            logstore = await self._metadata.fresh(key, Logstore)
            if logstore is None or is_settled(logstore):
                return logstore
            if logstore.is_deleting:
                await self._delete(key, logstore)
            else:
                await self._finish(key, logstore)

    async def _finish(self, key: str, logstore: Logstore) -> None:
        made = [each for each in logstore.shards if each.status is ShardStatus.CREATING]
        await asyncio.gather(*(self._create(each.log) for each in made))
        sealed = [each for each in logstore.shards if each.status is ShardStatus.SEALING]
        positions = await asyncio.gather(*(self._seal(each.log) for each in sealed))
        ends = {each.id: end for each, end in zip(sealed, positions, strict=True)}
        doomed = [each for each in logstore.shards if each.status is ShardStatus.DELETING]
        await asyncio.gather(*(self._remove(each.log) for each in doomed))
        removed = [each.id for each in doomed]
        known = {each.id for each in made}

        def finish(found: Logstore | None) -> Logstore | None:
            if found is None:
                return None
            new = finish_delete(finish_hand_overs(found, ends), removed)
            # Of another one that began meanwhile the logs are not made yet.
            if {each.id for each in new.shards if each.status is ShardStatus.CREATING} <= known:
                new = finish_creation(new)
            return found if new == found else new

        await self._metadata.change(key, Logstore, finish)

    async def _delete(self, key: str, logstore: Logstore) -> None:
        await asyncio.gather(*(self._remove(each.log) for each in logstore.shards))
        await self._forget(logstore.project, logstore.name)

        def drop(found: Logstore | None) -> Logstore | None:
            # Another of the same name may have been made since this one went.
            is_same = found is not None and found.shards == logstore.shards
            return None if is_same else found

        await self._metadata.change(key, Logstore, drop)

    async def _create(self, log: str) -> None:
        async with self._limit:
            await self._logs.create(log)
            await self._logs.open(log)  # it has a leader then

    async def _seal(self, log: str) -> Position:
        async with self._limit:
            return await (await self._logs.open(log)).seal()

    async def _remove(self, log: str) -> None:
        async with self._limit:
            await self._logs.remove(log)
