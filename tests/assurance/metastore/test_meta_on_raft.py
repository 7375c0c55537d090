"""The metastore on three stores that lose their power by turns: the same suite as on a folder."""

import asyncio
import itertools

from raftwood.server.cluster import METASTORE_SHARD
from raftwood.server.tenants import log_tenant
from tests.kits.metastore.stores_suite import STORES, StoresSuite


class TestOnStoresThatAreKilled(StoresSuite):
    async def disturb(self) -> None:
        """One store after the other loses its power and comes back."""
        for store in itertools.cycle(STORES):
            await asyncio.sleep(2.5)
            self.cluster.machines[store].power_off()
            await asyncio.sleep(0.5)
            self.cluster.start(store)


class TestOnLogStoresThatAreKilled(TestOnStoresThatAreKilled):
    make_tenant = staticmethod(log_tenant)
    group = METASTORE_SHARD
