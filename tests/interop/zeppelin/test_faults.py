"""Clients of others at work while the master that they write to dies, or is stopped."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from raftwood.zeppelin.model import TableConfig
from raftwood.zeppelin.slots import partition_of_slot, slot_of
from tests.interop.zeppelin import redis_py
from tests.interop.zeppelin.redis_tools import Tools
from tests.zeppelin_kit.processes import QUICK, KvProcesses, Login, kv_processes

pytestmark = [pytest.mark.slow, pytest.mark.needs("redis_clients", "redis_tools")]

TABLE = TableConfig(partitions=6, replicas=3, min_replicas=2)
ENDS_S_MAX = 60
AFTER_DOWN_S_MAX = 5.0
"""Until clients have found the new master, on a busy machine."""
STOPPED_S_MAX = 3.0


def tags() -> list[str]:
    """One for each partition."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < TABLE.partitions:
        number += 1
        slot = slot_of(b"tag%d" % number)
        found.setdefault(partition_of_slot(slot, TABLE.partitions), f"tag{number}")
    return list(found.values())


class Loads:
    """Programs of redis-py at work, by name."""

    def __init__(self, programs: dict[str, Popen[str]]) -> None:
        self._programs = programs

    def ended(self) -> dict[str, Any]:
        """What each has seen, and found in the end; all have what was acked."""
        said = {}
        for name, program in self._programs.items():
            output, errors = program.communicate("", timeout=ENDS_S_MAX)
            assert program.returncode == 0, errors
            said[name] = json.loads(output.splitlines()[-1])
            print(f"{name}: {said[name]['acked']} acked, {said[name]['gap_s']:.2f} s without")
        for name, seen in said.items():
            assert seen["acked"] > 0
            assert not seen["lost"], f"{name} lost {seen['lost']}"
            assert not seen["unscanned"], f"{name} does not see {seen['unscanned']}"
            for counter, (acked, count, _) in seen["counts"].items():
                assert acked <= count, f"{name}: {counter} lost increments"
        return said


@contextmanager
def working(
    cluster: KvProcesses, login: Login, phase: str, clients: dict[str, bool]
) -> Iterator[Loads]:
    """Clients by version, with their own retries or without."""
    programs = {}
    with ExitStack() as stack:
        for version, has_retries in clients.items():
            name = f"redis-py {version}"
            given = {
                "name": f"{phase}-{version}",
                "ports": [cluster.ports[node.name][0] for node in cluster.nodes.values()],
                "user": login.user,
                "password": login.password,
                "tags": tags(),
                "has_retries": has_retries,
            }
            program = stack.enter_context(redis_py.start(version, "redis_py_load", given))
            stack.callback(program.kill)
            programs[name] = program
        for program in programs.values():
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
        yield Loads(programs)


@contextmanager
def benchmarking(tools: Tools) -> Iterator[None]:
    """Redis's benchmark as a load; it ends with the first connection that does, with Redis too."""
    words = ("--cluster", "-t", "incr", "-n", "1000000", "-c", "6")
    with tools.start("redis-benchmark", *words) as benchmark:
        try:
            yield
        finally:
            benchmark.kill()


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
