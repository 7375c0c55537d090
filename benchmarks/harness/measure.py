"""One measurement each: a load, and a leader's death."""

import contextlib
import json
import pathlib
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import msgspec

from benchmarks.harness.cluster import Cluster, ClusterFailed
from benchmarks.harness.system import NODES, Load, System

LOAD_EXTRA_S = 60.0
"""How much longer than asked a load may take before it is given up."""
ATTEMPTS = 2


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """CPU is per append; that of the followers is their mean.

    With many groups "leader" is the node that leads the first one: all three lead some.
    """

    appends_per_second: float
    megabytes_per_second: float
    p50_ms: float
    p99_ms: float
    leader_cpu_us: float
    follower_cpu_us: float
    client_cpu_us: float
    servers_cpu_us: float = 0.0
    """Of all server processes together, those among them that are no nodes."""


def measure_load(system: System, folder: pathlib.Path, groups: int, load: Load) -> Figures:
    """A fresh cluster under load; another one if that fails or its leader changes meanwhile."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _measure_once(system, folder, groups, load)
        except ClusterFailed:
            if attempt == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _measure_once(system: System, folder: pathlib.Path, groups: int, load: Load) -> Figures:
    with Cluster(system, folder=folder, groups=groups) as cluster:
        cluster.settle()
        return measure_on(cluster, load)


def measure_on(cluster: Cluster, load: Load) -> Figures:
    """A load on a cluster that runs and may have had others before."""
    leader = cluster.leader()
    with _running(cluster, load, leader) as lines:
        _expect(next(lines), "warm")
        before = cluster.cpu_s()
        result = _expect(next(lines), "result")
        spent = [b - a for a, b in zip(before, cluster.cpu_s(), strict=True)]
    # The leaders of many groups are spread, and one that moves changes little.
    if cluster.layout.groups == 1 and cluster.leader() != leader:
        raise ClusterFailed(f"{cluster.system.name}: the leader has changed under load")
    return _figures(result, spent, leader, load)


def measure_failover(system: System, folder: pathlib.Path, load: Load) -> float:
    """Milliseconds from the leader's death under load to the first acked write sent after it."""
    with Cluster(system, folder=folder) as cluster:
        cluster.settle()
        leader = cluster.leader()
        killing = msgspec.structs.replace(load, kill=cluster.process_id(leader))
        with _running(cluster, killing, leader) as lines:
            _expect(next(lines), "warm")
            return float(_expect(next(lines), "failover")["first_ack_ms"])


def _figures(result: dict[str, Any], spent: list[float], leader: int, load: Load) -> Figures:
    count, rate = result["count"], result["count"] / result["elapsed_s"]
    followers = sum(cpu for node, cpu in enumerate(spent[:NODES]) if node != leader) / (NODES - 1)
    return Figures(
        appends_per_second=rate,
        megabytes_per_second=rate * load.payload_bytes / 1e6,
        p50_ms=result["p50_ms"],
        p99_ms=result["p99_ms"],
        leader_cpu_us=spent[leader] / count * 1e6,
        follower_cpu_us=followers / count * 1e6,
        client_cpu_us=result["client_cpu_s"] / count * 1e6,
        servers_cpu_us=sum(spent) / count * 1e6,
    )


@contextlib.contextmanager
def _running(cluster: Cluster, load: Load, leader: int) -> Iterator[Iterator[str]]:
    """The lines that a load prints; the process has ended afterwards."""
    command = cluster.system.load_command(cluster.layout, load, leader)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        limit = threading.Timer(load.warm_s + load.seconds + LOAD_EXTRA_S, process.kill)
        limit.start()
        try:
            yield _lines(process)
            process.wait(LOAD_EXTRA_S)
        finally:
            limit.cancel()
            process.kill()


def _lines(process: "subprocess.Popen[str]") -> Iterator[str]:
    assert process.stdout is not None
    yield from process.stdout
    raise ClusterFailed(f"the load ended early, with status {process.wait()}")


def _expect(line: str, event: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(line)
    if said.get("event") != event:
        raise ClusterFailed(f"the load says {line.strip()} where {event!r} is due")
    return said
