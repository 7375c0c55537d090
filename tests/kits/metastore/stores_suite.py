"""The metastore on three stores as the program runs them, in simulation."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from raftwood.base.seams import MetaStore
from raftwood.metastore.raft_store import RaftMetaStore
from raftwood.server.cluster import METASTORE_GROUP
from raftwood.server.store import MakeTenant
from raftwood.server.tenants import MetastoreTenant
from raftwood.testing import Simulation, simulate
from tests.kits.metastore.meta_suite import MetaSuite
from tests.kits.server.store_cluster import StoreCluster

STORES = (1, 2, 3)


class StoresSuite(MetaSuite):
    make_tenant: MakeTenant = MetastoreTenant
    group = METASTORE_GROUP
    cluster: StoreCluster

    @asynccontextmanager
    async def opened(self, folder: str) -> AsyncIterator[MetaStore]:  # noqa: ARG002
        async with self.cluster.client() as client:
            store = RaftMetaStore(client, self.group)
            yield store
            await store.close()

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        async def scenario(simulation: Simulation) -> None:
            self.cluster = StoreCluster(simulation, type(self).make_tenant)
            self.cluster.start(*STORES)
            await self.cluster.ready(*STORES)
            disturbing = asyncio.create_task(self.disturb())
            try:
                await main
            finally:
                disturbing.cancel()
                await asyncio.wait([disturbing])
            self.cluster.start(
                *(store for store in STORES if not self.cluster.machines[store].running)
            )
            await self.cluster.stop(*STORES)

        simulate(1, scenario, virtual_seconds_max=3_600.0)

    async def disturb(self) -> None:
        """Nothing is wrong with these stores."""
