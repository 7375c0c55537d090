"""The metastore on a real ZooKeeper server: the suite, many clients, lost servers."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from tests.unit.metastore.meta_suite import MetaSuite
from tests.zookeeper_server import ZooKeeperServer

from raftwood.base.seams import MetaStore
from raftwood.disk.real_environment import real_environment
from raftwood.metastore.zookeeper_store import ZooKeeperMetaStore

pytestmark = pytest.mark.needs("zookeeper")


@asynccontextmanager
async def opened(address: str, *, snapshot_entries: int = 10_000) -> AsyncIterator[MetaStore]:
    with real_environment() as environment:
        store = await ZooKeeperMetaStore.open(
            environment, address, snapshot_entries=snapshot_entries
        )
        try:
            yield store
        finally:
            await store.close()


class TestOnZooKeeper(MetaSuite):
    @pytest.fixture
    def folder(self, zookeeper: ZooKeeperServer, request: pytest.FixtureRequest) -> str:
        return f"{zookeeper.address}/{request.node.name}"

    def opened(self, folder: str) -> AbstractAsyncContextManager[MetaStore]:
        return opened(folder, snapshot_entries=20)
