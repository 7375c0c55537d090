"""Clients of a metastore in ZooKeeper, for tests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from raftwood.base.seams import KeyChange, MetaStore
from raftwood.disk.real_environment import real_environment
from raftwood.metastore.zookeeper_store import ZooKeeperMetaStore


@asynccontextmanager
async def opened(
    address: str, *, snapshot_entries: int = 10_000, timeout_ms: int = 30_000
) -> AsyncIterator[ZooKeeperMetaStore]:
    with real_environment() as environment:
        store = await ZooKeeperMetaStore.open(
            environment, address, snapshot_entries=snapshot_entries, timeout_ms=timeout_ms
        )
        try:
            yield store
        finally:
            await store.close()


async def follow(store: MetaStore, prefix: str, into: list[KeyChange]) -> None:
    async for changes in store.watch(prefix, after_version=0):
        into += changes


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110  it is looked at from outside
        await asyncio.sleep(0.01)
