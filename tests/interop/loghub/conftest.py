"""Databases for tests of leases, each test once for each of them."""

from pathlib import Path

import pytest

from tests.kits.servers.databases import DatabaseServer

DATABASES = (
    "sqlite",
    pytest.param("postgresql", marks=pytest.mark.needs("postgresql")),
    pytest.param("mariadb", marks=pytest.mark.needs("mariadb")),
)


@pytest.fixture(scope="session", params=DATABASES)
def database(request: pytest.FixtureRequest) -> DatabaseServer | None:
    """None for SQLite, which has no server."""
    if request.param == "sqlite":
        return None
    server = request.getfixturevalue(request.param)
    assert isinstance(server, DatabaseServer)
    return server


@pytest.fixture
def database_url(database: DatabaseServer | None, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/leases.db" if database is None else database.url()
