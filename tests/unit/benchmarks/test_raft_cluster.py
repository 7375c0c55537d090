"""The raft benchmark's harness, against a system of processes that only sleep and print."""

from pathlib import Path

import pytest
from benchmarks.harness import cluster
from benchmarks.harness.cluster import Cluster, ClusterFailed, check_disk
from benchmarks.harness.measure import measure_failover, measure_load
from benchmarks.harness.report import statements
from benchmarks.harness.system import Load
from benchmarks.raft_cluster.compare import CASES, MANY, MOST, Results
from benchmarks.raft_cluster.idle import Idle
from benchmarks.raft_cluster.report import tables, verdicts
from tests.kits.server.sleepers import RESULT, WARM, Sleepers, figures_of

LOAD = Load(in_flight=4, payload_bytes=1000, warm_s=0.0, seconds=0.0)


@pytest.fixture(autouse=True)
def _any_disk_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "FREE_BYTES_MIN", 0)
    monkeypatch.setattr(cluster, "SETTLED_S", 0.0)


def test_a_load_gives_rates_latencies_and_cpu_and_leaves_nothing_behind(tmp_path: Path) -> None:
    figures = measure_load(Sleepers(WARM, RESULT), tmp_path, 1, LOAD)
    assert figures.appends_per_second == 100
    assert figures.megabytes_per_second == pytest.approx(0.1)
    assert figures.client_cpu_us == pytest.approx(50)
    assert figures.leader_cpu_us >= 0
    assert list(tmp_path.iterdir()) == []


def test_a_leaders_death_names_the_leaders_process_to_the_load(tmp_path: Path) -> None:
    system = Sleepers(WARM, {"event": "failover", "first_ack_ms": 1234.0})
    assert measure_failover(system, tmp_path, LOAD) == 1234.0
    assert isinstance(system.loads[0].kill, int)
    assert f"--kill={system.loads[0].kill}" in system.loads[0].flags()


def test_a_load_that_ends_early_fails_the_measurement(tmp_path: Path) -> None:
    system = Sleepers(WARM)
    with pytest.raises(ClusterFailed, match="ended early"):
        measure_load(system, tmp_path, 1, LOAD)
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_dies_is_reported_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Sleepers(node="raise SystemExit('no luck today')")
    monkeypatch.setattr(system, "leaders", lambda _layout: [None])
    with pytest.raises(ClusterFailed, match="no luck today"), Cluster(system, folder=tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_leaves_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "FREE_BYTES_MIN", 1 << 60)
    with pytest.raises(ClusterFailed, match="make room"), Cluster(Sleepers(), folder=tmp_path):
        pass


@pytest.mark.needs("memory_disk")
def test_a_disk_in_memory_is_refused() -> None:
    with pytest.raises(ClusterFailed, match="a sync is free"):
        check_disk(Path("/dev/shm"))


def test_goals_are_judged_as_multiples_of_the_peer() -> None:
    results = Results(disk="a disk")
    results.loads = {
        "raftwood": {case.name: figures_of(300, p99_ms=4.0) for case in CASES},
        "etcd": {MANY.name: figures_of(100, p99_ms=5.0)},
        "dragonboat": {MOST.name: figures_of(1000)},
    }
    results.idle = {
        "raftwood": Idle(cpu_percent=2.0, kilobytes_per_group=30.0, restart_to_all_leaders_s=1.0)
    }
    judged = {verdict.what: verdict.is_reached for verdict in verdicts(results)}
    assert judged == {
        "100 B, 64 in flight: appends/s against etcd": True,
        "100 B, 64 in flight: p99 against etcd": False,
        "100 B, 512 in flight: appends/s against dragonboat": False,
        "2,000 groups against one, 512 in flight": True,
        "1,000 idle groups: busiest store": True,
        "1,000 idle groups: memory of a group per store": False,
        "1,000 idle groups: all leaders after a restart": True,
    }
    assert len(tables(results)) == 4


def test_peers_alone_make_a_report_without_goals() -> None:
    results = Results(disk="a disk", missing={"raftwood": "not built"})
    results.loads = {"etcd": {MANY.name: figures_of(100)}}
    assert verdicts(results) == []
    assert len(tables(results)) == 2
    assert "- raftwood: not available: not built" in statements(results)
