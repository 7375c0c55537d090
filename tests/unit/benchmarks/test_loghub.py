"""LogHub's benchmark: what it runs, and what it judges."""

from pathlib import Path

import pytest
from benchmarks.harness import cluster
from benchmarks.harness.cluster import Cluster
from benchmarks.harness.comparison import Results
from benchmarks.harness.measure import measure_on
from benchmarks.harness.system import Layout
from benchmarks.loghub import compare
from benchmarks.loghub.cases import CASES, OURS, consume_batches, produce_batches
from benchmarks.loghub.compare import Pace
from benchmarks.loghub.loghub_system import LogHubSystem, ready_file
from benchmarks.loghub.report import tables, verdicts
from benchmarks.loghub.ways import STREAMS, TOPICS, filled
from benchmarks.peers.kafka_consume import FILLED_BYTES_MIN, filled_bytes
from tests.kits.server.sleepers import RESULT, WARM, Sleepers, figures_of

PACE = Pace(warm_s=0.0, seconds=0.0, rounds=1)
LAYOUT_PORTS = {"client_ports": (1, 2, 3), "peer_ports": (4, 5, 6)}


@pytest.fixture(autouse=True)
def _any_disk_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "FREE_BYTES_MIN", 0)
    monkeypatch.setattr(cluster, "SETTLED_S", 0.0)
    monkeypatch.setattr(cluster, "IN_MEMORY", set())


def test_a_peer_runs_each_case_in_one_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = Sleepers(WARM, RESULT)
    monkeypatch.setattr(compare, "_system", lambda _name: system)
    results = compare.compare(("sleepers",), PACE, folder=tmp_path, progress=lambda _step: None)
    assert results.failed == []
    expected = [case.name for case in CASES if OURS in case.ways]
    assert list(results.loads["sleepers"]) == expected
    assert len(expected) == 8
    assert {load.way for load in system.loads} == {"", "consume", "consume-one"}
    assert {load.in_flight for load in system.loads} == {1, 100_000}
    assert list(tmp_path.iterdir()) == []


def test_the_cpu_of_all_servers_is_told(tmp_path: Path) -> None:
    system = Sleepers(WARM, RESULT)
    with Cluster(system, folder=tmp_path) as nodes:
        load = CASES[0].load("", warm_s=0.0, seconds=0.0)
        figures = measure_on(nodes, load)
    assert figures.servers_cpu_us >= figures.leader_cpu_us


def test_our_client_has_a_row_for_each_way() -> None:
    rows = list(compare._rows(LogHubSystem()))
    assert len(rows) > len(CASES)
    assert {row for row, case, _ in rows if case == produce_batches(100)} == {
        "loghub",
        "loghub, send_many",
        "loghub, send with linger",
    }
    assert {filled(100, way) for _, case, way in rows if case == consume_batches(100)} < {*STREAMS}
    assert {*TOPICS} < {*STREAMS}


def test_goals_are_judged_with_and_without_fsync() -> None:
    results = Results(disk="a disk")
    names = [case.name for case in CASES]
    results.loads = {
        OURS: {name: figures_of(150) for name in names},
        "loghub, send_many": {produce_batches(100).name: figures_of(120)},
        "kafka-fsync": {name: figures_of(100) for name in names},
        "kafka": {name: figures_of(140) for name in names},
    }
    judged = {verdict.what: verdict.is_reached for verdict in verdicts(results)}
    assert len(judged) == 10
    assert judged["produce 100 B by batches: records/s against kafka-fsync"] is False
    assert judged["produce 100 B by batches: records/s against kafka"] is True
    assert judged["consume 1 kB one by one: records/s against kafka-fsync"] is True
    assert len(tables(results)) == 2


def test_stores_and_gateway_share_one_file_of_settings(tmp_path: Path) -> None:
    layout = Layout(folder=str(tmp_path), groups=1, **LAYOUT_PORTS)
    system = LogHubSystem()
    commands = [*(system.node_command(layout, node) for node in range(3))]
    commands.append(system.gateway_command(layout))
    assert {command[5] for command in commands} == {f"--config={tmp_path}/raftwood.toml"}
    assert "127.0.0.1:4" in "".join(commands[3])
    assert str(ready_file(layout)) in "".join(commands[3])


def test_a_short_measurement_is_given_less_to_read() -> None:
    assert filled_bytes(0.1) == FILLED_BYTES_MIN < filled_bytes(3.0)
