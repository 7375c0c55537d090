"""Leases in the servers of others mean what leases in every store mean."""

import pytest

from tests.kits.loghub.sql import SqlSuite
from tests.kits.servers.databases import DatabaseServer


@pytest.mark.needs("postgresql")
class TestPostgresLeases(SqlSuite):
    @pytest.fixture(autouse=True)
    def _server(self, postgresql: DatabaseServer) -> None:
        self.url = postgresql.url()


@pytest.mark.needs("mariadb")
class TestMariaLeases(SqlSuite):
    @pytest.fixture(autouse=True)
    def _server(self, mariadb: DatabaseServer) -> None:
        self.url = mariadb.url()
