"""Leases in real databases mean what leases in every store mean."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from raftwood.disk.real_environment import real_environment
from tests.kits.loghub.lease_store_suite import LeaseStoreSuite, Scenario
from tests.kits.loghub.sql import SqlKit
from tests.kits.servers.databases import DatabaseServer


async def _run(url: str, scenario: Scenario) -> None:
    with real_environment() as environment:
        async with AsyncExitStack() as ends:
            await scenario(SqlKit(environment, url, ends))


class _SqlSuite(LeaseStoreSuite):
    url: str

    def run(self, scenario: Scenario) -> None:
        asyncio.run(_run(self.url, scenario))


class TestSqliteLeases(_SqlSuite):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.url = f"sqlite:///{tmp_path}/leases.db"


@pytest.mark.slow
@pytest.mark.needs("postgresql")
class TestPostgresLeases(_SqlSuite):
    @pytest.fixture(autouse=True)
    def _server(self, postgresql: DatabaseServer) -> None:
        self.url = postgresql.url()


@pytest.mark.slow
@pytest.mark.needs("mariadb")
class TestMariaLeases(_SqlSuite):
    @pytest.fixture(autouse=True)
    def _server(self, mariadb: DatabaseServer) -> None:
        self.url = mariadb.url()
