"""Leases in memory mean what leases in every store mean."""

import asyncio

from raftwood.loghub.consumer.leases import LeaseStore
from raftwood.loghub.consumer.memory_store import MemoryLeaseStore
from tests.kits.loghub.lease_store_suite import LeaseStoreSuite, Scenario


class _Kit:
    def __init__(self) -> None:
        self._store = MemoryLeaseStore()

    async def open(self) -> LeaseStore:
        await self._store.open()
        return self._store


class TestMemoryLeaseStore(LeaseStoreSuite):
    def run(self, scenario: Scenario) -> None:
        asyncio.run(_run(scenario))


async def _run(scenario: Scenario) -> None:
    await scenario(_Kit())
