"""`Settling`: carries out what a logstore's value says is begun, whoever began it.

Every step can be done again, by several gateways at once: logs are made, sealed and removed by
their names, and each last step is a compare-and-set that finds nothing to do where another has
done it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from raftwood.base.environment import Environment
from raftwood.base.errors import NotFound, Unavailable
from raftwood.base.position import Position
from raftwood.base.seams import Compare, Logs
from raftwood.loghub.log_names import LOG_PREFIX, RANDOM_BYTES, is_log_name, log_name
from raftwood.loghub.model import LogKind, Logstore, ShardStatus
from raftwood.loghub.server.metadata import LOGSTORES, Metadata, logstore_key
from raftwood.loghub.shard_rules import (
    finish_creation,
    finish_delete,
    finish_hand_overs,
    is_same_logstore,
    is_settled,
)

_AT_ONCE: Final = 16
_ROUNDS_MAX: Final = 20
"""One round does all that was begun before it; more are needed only where others begin more."""

Forget = Callable[[str, str, Compare], Awaitable[None]]
"""Removes what else is kept of a logstore (project, name), as long as the compare holds."""


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

    def new_log(self, kind: LogKind) -> str:
        """A name that no log has."""
        return log_name(kind, self._environment.random.randbytes(RANDOM_BYTES))

    async def settle(self, project: str, name: str) -> Logstore | None:
        """Finish all that is begun; the value after it, or None where the logstore is gone."""
        key = logstore_key(project, name)
        for _ in range(_ROUNDS_MAX):
            found = await self._metadata.versioned(key, Logstore)
            if found is None or is_settled(found[0]):
                return None if found is None else found[0]
            logstore, version = found
            if logstore.is_deleting:
                await self._delete(Compare(key, version), logstore)
            else:
                await self._finish_or_look_again(key, logstore, version)
        raise Unavailable(
            f"the shards of logstore {name} change all the time: try again in a moment"
        )

    async def _finish_or_look_again(self, key: str, logstore: Logstore, version: int) -> None:
        try:
            await self._finish(key, logstore)
        except NotFound:
            # Its logs are gone where it was deleted meanwhile.
            found = await self._metadata.versioned(key, Logstore)
            if found is not None and found[1] == version:
                raise

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
            # Meanwhile it may have been deleted, and another of its name been made.
            if found is None or found.is_deleting or not is_same_logstore(found, logstore):
                return found
            new = finish_delete(finish_hand_overs(found, ends), removed)
            # Of another one that began meanwhile the logs are not made yet.
            if {each.id for each in new.shards if each.status is ShardStatus.CREATING} <= known:
                new = finish_creation(new)
            return found if new == found else new

        await self._metadata.change(key, Logstore, finish)

    async def _delete(self, current: Compare, logstore: Logstore) -> None:
        await asyncio.gather(*(self._end(each.log) for each in logstore.shards))
        await self._forget(logstore.project, logstore.name, current)

        def drop(found: Logstore | None) -> Logstore | None:
            # Another of the same name may have been made since this one went.
            is_same = found is not None and found.shards == logstore.shards
            return None if is_same else found

        await self._metadata.change(current.key, Logstore, drop)

    async def _create(self, log: str) -> None:
        async with self._limit:
            await self._logs.create(log)
            await self._logs.open(log)  # it has a leader then

    async def _seal(self, log: str) -> Position:
        async with self._limit:
            return await (await self._logs.open(log)).seal()

    async def _end(self, log: str) -> None:
        """A log that is removed may answer for a moment still: sealed, it takes nothing from a
        gateway that has not heard of it.
        """
        try:
            await self._seal(log)
        except NotFound:
            return
        await self._remove(log)

    async def _remove(self, log: str) -> None:
        async with self._limit:
            await self._logs.remove(log)

    async def stray_logs(self) -> list[str]:
        """Logs of no shard: made by a gateway that was late, when their logstore had been deleted.

        Whoever makes a log has named it in the metadata before, and no name is given twice. So one
        that is not named there once it was listed never will be.
        """
        names = [each for each in await self._logs.names(LOG_PREFIX) if is_log_name(each)]
        if not names:
            return []
        logstores = await self._metadata.list(LOGSTORES, Logstore)
        known = {shard.log for each in logstores for shard in each.shards}
        return [each for each in names if each not in known]

    async def remove_stray(self, log: str) -> bool:
        """Only one that was never put to: after a mishap with the metastore, what others hold is
        all that is left of their logstores.
        """
        try:
            async with self._limit:
                bounds = await (await self._logs.open(log)).bounds()
        except NotFound:
            return True
        if bounds.appended_bytes:
            return False
        await self._remove(log)
        return True
