"""Leases in a file of SQLite mean what leases in every store mean."""

from pathlib import Path

import pytest

from tests.kits.loghub.sql import SqlSuite


class TestSqliteLeases(SqlSuite):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.url = f"sqlite:///{tmp_path}/leases.db"
