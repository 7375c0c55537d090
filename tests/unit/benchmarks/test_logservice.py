"""Logservice's benchmark: what it runs, what it judges, and how Kafka is started for it."""

from pathlib import Path

import pytest
from benchmarks.harness import cluster
from benchmarks.harness.comparison import Results
from benchmarks.harness.system import Layout, Load, NotAvailable
from benchmarks.logservice import compare
from benchmarks.logservice.compare import BATCHES, CASES, MANY, MOST, MOST_SHARDS, Pace
from benchmarks.logservice.report import tables, verdicts
from benchmarks.peers.kafka_system import KafkaSystem
from tests.kits.install import maven
from tests.kits.install.cache import NotInstalled
from tests.kits.server.sleepers import RESULT, WARM, Sleepers, figures_of

PACE = Pace(warm_s=0.0, seconds=0.0, rounds=2, kills_most=0)
LAYOUT_PORTS = {"client_ports": (1, 2, 3), "peer_ports": (4, 5, 6)}


@pytest.fixture(autouse=True)
def _any_disk_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "FREE_BYTES_MIN", 0)
    monkeypatch.setattr(cluster, "SETTLED_S", 0.0)
    monkeypatch.setattr(cluster, "IN_MEMORY", set())


def test_a_system_without_shards_and_batches_runs_the_other_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Sleepers(WARM, RESULT)
    monkeypatch.setattr(compare, "_system", lambda _name: system)
    results = compare.compare(("sleepers",), PACE, folder=tmp_path, progress=lambda _step: None)
    expected = [case.name for case in CASES if case.shards == 1 and not case.is_batched]
    assert list(results.loads["sleepers"]) == expected
    # Each case gets warm and is measured, in each of two rounds.
    assert len(system.loads) == 4 * len(expected)
    assert results.failed == []
    assert list(tmp_path.iterdir()) == []


def test_a_system_that_cannot_be_had_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> Path:
        raise NotInstalled("there is no java")

    monkeypatch.setattr(maven, "install", fails)
    results = compare.compare(("kafka",), PACE, folder=tmp_path, progress=lambda _step: None)
    assert results.missing == {"kafka": "there is no java"}
    with pytest.raises(NotAvailable, match="no java"):
        KafkaSystem(is_synced=True).prepare()


def test_goals_are_judged_against_both_peers() -> None:
    results = Results(disk="a disk")
    results.loads = {
        "logservice": {case.name: figures_of(300) for case in CASES},
        "etcd": {MANY.name: figures_of(100)},
        "kafka-fsync": {BATCHES.name: figures_of(200)},
        "kafka": {BATCHES.name: figures_of(300)},
    }
    results.loads["logservice"][MOST.name] = figures_of(400)
    results.failovers_ms = {"logservice": [900.0], "etcd": [800.0, 1000.0], "kafka": [10_000.0]}
    assert MOST_SHARDS.name != MOST.name
    judged = {verdict.what: verdict.is_reached for verdict in verdicts(results)}
    assert judged == {
        "100 B, 64 clients, 1 shard: appends/s against etcd": True,
        "100 B in batches, 1 shard: appends/s against kafka-fsync": False,
        "100 B in batches, 1 shard: appends/s against kafka": True,
        "64 shards against one, 512 in flight": False,
        "the leader's death: median against etcd": True,
        "the leader's death: median against kafka": True,
    }
    assert len(tables(results)) == 3


def test_kafkas_nodes_find_formatted_storage_and_each_other(tmp_path: Path) -> None:
    layout = Layout(folder=str(tmp_path), groups=1, **LAYOUT_PORTS)
    node = tmp_path / "node-1"
    node.mkdir()
    command = KafkaSystem(is_synced=False).node_command(layout, 1)
    assert command[0] == "java"
    assert command[-1] == f"{node}/server.properties"
    settings = (node / "server.properties").read_text()
    assert "controller.quorum.voters=0@127.0.0.1:4,1@127.0.0.1:5,2@127.0.0.1:6" in settings
    assert "node.id=1" in (node / "data" / "meta.properties").read_text().splitlines()


def test_kafka_serves_all_clients_through_one_producer(tmp_path: Path) -> None:
    layout = Layout(folder=str(tmp_path), groups=64, **LAYOUT_PORTS)
    load = Load(in_flight=512, payload_bytes=100, warm_s=1.0, seconds=2.0, clients=64, shards=64)
    command = KafkaSystem(is_synced=False).load_command(layout, load, 0)
    assert "--in-flight=512" in command
    assert "--shards=64" in command
    assert not any(flag.startswith("--clients") for flag in command)
    assert "--clients=64" in load.flags()
