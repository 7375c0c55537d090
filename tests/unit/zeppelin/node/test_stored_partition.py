"""A stored partition on RocksDB and the machine's disk, and on simulated ones."""

from pathlib import Path

import pytest

from tests.kits.zeppelin.partition_suite import PartitionSuite
from tests.kits.zeppelin.stores import Scenario, run_on_rocksdb, run_simulated


class TestOnRocksDb(PartitionSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def run(self, scenario: Scenario) -> None:
        run_on_rocksdb(scenario, self.folder)


class TestSimulated(PartitionSuite):
    def run(self, scenario: Scenario) -> None:
        run_simulated(scenario)
