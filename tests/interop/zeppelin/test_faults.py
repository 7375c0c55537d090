"""Clients of others at work while the master that they write to dies, or is stopped."""

import time
from pathlib import Path

import pytest

from raftwood.zeppelin.model import TableConfig
from tests.kits.zeppelin.processes import QUICK, KvProcesses, Login, kv_processes
from tests.kits.zeppelin.redis_loads import benchmarking, working
from tests.kits.zeppelin.redis_tools import Tools

pytestmark = pytest.mark.needs("redis_clients", "redis_tools")

TABLE = TableConfig(partitions=6, replicas=3, min_replicas=2)
AFTER_DOWN_S_MAX = 30.0
"""Until clients have found the new master, on a busy machine."""
STOPPED_S_MAX = 30.0


def test_clients_go_on_when_a_master_dies_or_is_stopped(tmp_path: Path) -> None:
    with kv_processes(tmp_path) as cluster:
        login = cluster.create_table("orders", TABLE)
        killed(cluster, login)
        stopped(cluster, login)


def killed(cluster: KvProcesses, login: Login) -> None:
    """Nothing that was acked is lost, and all go on by themselves."""
    number = cluster.master_of("orders", 0)
    victim, other = cluster.nodes[number], cluster.nodes[number % 3 + 1]
    tools = Tools(cluster.ports[other.name][0], login.user, login.password)
    clients = {"5": True, "7": False, "8": True}
    with benchmarking(tools), working(cluster, login, "killed", clients) as loads:
        victim.kill_now()
        cluster.wait_served("orders")
        time.sleep(0.5)
        said = loads.ended()
    down_s = QUICK["zeppelin_meta.down_ms"] / 1000
    for name, seen in said.items():
        assert seen["gap_s"] < down_s + AFTER_DOWN_S_MAX, f"{name} was without for {seen['gap_s']}"
    for acked, count, sent in said["redis-py 7"]["counts"].values():
        assert acked <= count <= sent, "what is sent once counts once"
    assert "[OK] All 16384 slots covered." in tools.cluster("check")
    assert tools.benchmark("--cluster", "-t", "incr,get", "-n", "500", "-c", "5")
    victim.start()
    cluster.wait_served("orders")


def stopped(cluster: KvProcesses, login: Login) -> None:
    """Its partitions are handed over first: nobody notices more than a pause."""
    with working(cluster, login, "stopped", {"5": True, "8": True}) as loads:
        victim = cluster.nodes[cluster.master_of("orders", 1)]
        assert victim.stop() == 0
        cluster.wait_served("orders")
        time.sleep(0.3)
        said = loads.ended()
    for name, seen in said.items():
        assert not seen["errors"], f"{name} saw {seen['errors']}"
        assert seen["gap_s"] < STOPPED_S_MAX
        for acked, count, sent in seen["counts"].values():
            assert acked == count == sent
