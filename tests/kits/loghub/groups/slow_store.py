"""A metastore that takes its time: each call waits before it is made and before it is answered."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from raftwood.base.seams import (
    Compare,
    KeyChange,
    KeyOperation,
    KeyRange,
    MetaStatus,
    MetaStore,
    TransactionOutcome,
    Versioned,
)

Result = TypeVar("Result")


class SlowStore:
    """What a gateway has of the metastore, over a network that may be slow."""

    def __init__(self, store: MetaStore, source: random.Random, *, slow: float) -> None:
        self._store = store
        self._random = source
        self._slow = slow

    async def _pause(self) -> None:
        is_slow = self._random.random() < self._slow
        await asyncio.sleep(self._random.uniform(0.2, 1.5) if is_slow else 0.001)

    async def get(self, key: str) -> Versioned | None:
        await self._pause()
        found = await self._store.get(key)
        await self._pause()
        return found

    async def range(
        self, *, prefix: str = "", start: str = "", end: str | None = None, limit: int = 1000
    ) -> KeyRange:
        await self._pause()
        found = await self._store.range(prefix=prefix, start=start, end=end, limit=limit)
        await self._pause()
        return found

    async def compare_and_set(
        self, key: str, value: bytes | None, *, version: int, lease: int = 0
    ) -> int | None:
        await self._pause()
        found = await self._store.compare_and_set(key, value, version=version, lease=lease)
        await self._pause()
        return found

    async def transact(
        self,
        compares: Sequence[Compare],
        then: Sequence[KeyOperation],
        otherwise: Sequence[KeyOperation] = (),
    ) -> TransactionOutcome:
        await self._pause()
        found = await self._store.transact(compares, then, otherwise)
        await self._pause()
        return found

    async def grant_lease(self, *, ttl_ms: int) -> int:
        await self._pause()
        return await self._store.grant_lease(ttl_ms=ttl_ms)

    async def keep_alive(self, lease: int) -> None:
        await self._pause()
        await self._store.keep_alive(lease)
        await self._pause()

    async def revoke_lease(self, lease: int) -> None:
        await self._pause()
        await self._store.revoke_lease(lease)

    async def watch(
        self, prefix: str, *, after_version: int
    ) -> AsyncIterator[tuple[KeyChange, ...]]:
        async for changes in self._store.watch(prefix, after_version=after_version):
            await self._pause()
            yield changes

    async def status(self) -> MetaStatus:
        return await self._store.status()

    async def close(self) -> None:
        """The store is another's."""
