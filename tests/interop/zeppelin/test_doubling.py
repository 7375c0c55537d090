"""Clients of others at work while their table gets twice as many partitions."""

import time
from pathlib import Path

import pytest

from raftwood.zeppelin.model import Table, TableConfig
from tests.kits.zeppelin.processes import KvProcesses, kv_processes
from tests.kits.zeppelin.redis_loads import working

pytestmark = pytest.mark.needs("redis_clients")

TABLE = TableConfig(partitions=4, replicas=3, min_replicas=2)
DOUBLED_S_MAX = 120.0
GAP_S_MAX = 30.0


def doubled(cluster: KvProcesses, name: str) -> Table:
    """Once all partitions are split."""
    cluster.ask(lambda meta: meta.double_partitions(name))
    end = time.monotonic() + DOUBLED_S_MAX
    while (table := cluster.topology().tables[name]).is_doubling:
        assert time.monotonic() < end, f"{name} has {len(table.partitions)} partitions"
        time.sleep(0.05)
    return table


def test_clients_do_not_notice_that_their_table_doubles(tmp_path: Path) -> None:
    with kv_processes(tmp_path) as cluster:
        login = cluster.create_table("orders", TABLE)
        with working(cluster, login, "doubling", {"5": True, "8": True}) as loads:
            table = doubled(cluster, "orders")
            time.sleep(0.3)
            said = loads.ended()
        assert sorted(table.places) == list(range(8))
        for name, seen in said.items():
            assert not seen["errors"], f"{name} saw {seen['errors']}"
            assert seen["gap_s"] < GAP_S_MAX
            for acked, count, sent in seen["counts"].values():
                assert acked == count == sent
        cluster.wait_equal("orders")
