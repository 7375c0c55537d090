"""Stores of leases in SQL databases, for tests."""

import asyncio
import itertools
from contextlib import AsyncExitStack

from raftwood.base.environment import Environment
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.consumer.leases import LeaseStore, signature
from raftwood.loghub.consumer.sql_store import SqlLeaseStore
from tests.kits.loghub.lease_store_suite import LeaseStoreSuite, Scenario

_groups = itertools.count(1)
SIGNATURE = signature("project", "logstore")


class SqlKit:
    """A group of its own in a database, for one test."""

    def __init__(self, environment: Environment, url: str, ends: AsyncExitStack) -> None:
        self.environment = environment
        self._url = url
        self._ends = ends
        self.group = f"group-{next(_groups)}"

    def store(self) -> SqlLeaseStore:
        return SqlLeaseStore(self.environment, self._url, group=self.group, signature=SIGNATURE)

    async def open(self) -> LeaseStore:
        store = self.store()
        self._ends.push_async_callback(store.close)
        await store.open()
        return store


class SqlSuite(LeaseStoreSuite):
    """On the database of this URL."""

    url: str

    def run(self, scenario: Scenario) -> None:
        async def main() -> None:
            with real_environment() as environment:
                async with AsyncExitStack() as ends:
                    await scenario(SqlKit(environment, self.url, ends))

        asyncio.run(main())
