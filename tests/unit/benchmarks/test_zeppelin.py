"""Zeppelin's benchmark: what loads which system, what is read from it, and what is judged."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.harness import cluster
from benchmarks.harness.cluster import ClusterFailed
from benchmarks.harness.comparison import Results
from benchmarks.harness.measure import Figures
from benchmarks.harness.system import NotAvailable
from benchmarks.zeppelin import compare, systems
from benchmarks.zeppelin.cases import (
    ALWAYS,
    CASES,
    DURABLE,
    ETCD,
    OURS,
    REDIS,
    SYSTEMS,
    TWO,
    Case,
    cases_of,
)
from benchmarks.zeppelin.compare import Pace
from benchmarks.zeppelin.loads import (
    Endpoint,
    etcd_command,
    etcd_result,
    redis_command,
    redis_result,
)
from benchmarks.zeppelin.report import notes, tables, verdicts
from tests.kits.server.sleepers import figures_of

ENDPOINT = Endpoint(port=7, processes=(), program="load", user="u", password="p")
SAID = """"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms",\
"p99_latency_ms","max_latency_ms"
"SET key:__rand_int__ xxx","1000.50","0.1","0.0","0.2","0.3","0.4","0.5"
"""


def test_redis_benchmark_gets_the_same_requests_for_all() -> None:
    command = redis_command(ENDPOINT, Case("SET", 50, 16), 1000)
    assert command[:6] == ["load", "-p", "7", "--csv", "-r", "100000"]
    assert command[-3:] == ["SET", "key:__rand_int__", "x" * 100]
    assert "--cluster" not in command
    many = redis_command(ENDPOINT, Case("MSET", 50, 1), 1000)
    assert many.count("key:{tag}:__rand_int__") == many.count("x" * 100) == 100
    in_cluster = Endpoint(port=7, processes=(), program="load", is_cluster=True)
    command = redis_command(in_cluster, Case("INCR", 50, 1), 1000)
    assert command[-5:] == ["--cluster", "--threads", "1", "INCR", "counter:{tag}:__rand_int__"]
    assert "--user" not in command


def test_what_loads_say_is_read() -> None:
    found = redis_result(SAID, 5)
    assert found == {"count": 5.0, "rate": 1000.5, "p50_ms": 0.2, "p99_ms": 0.4}
    with pytest.raises(ClusterFailed, match="says nothing of the kind"):
        redis_result("nothing of the kind", 5)
    line = '{"event":"result","count":10,"elapsed_s":2.0,"p50_ms":1,"p99_ms":2}'
    assert etcd_result('{"event":"warm"}\n' + line)["rate"] == 5.0
    command = etcd_command(ENDPOINT, Case("MGET", 500, 1), 1.0)
    assert {"--in-flight=500", "--keys=100", "--get", "--seconds=1.0s"} <= set(command)


def test_each_system_has_its_cases() -> None:
    assert cases_of(OURS) == cases_of(REDIS) == CASES
    assert {case.operation for case in cases_of(ALWAYS)} == {"SET", "INCR", "MSET"}
    assert {case.pipeline for case in cases_of(ETCD)} == {1}
    assert all(case in CASES for name in SYSTEMS for case in cases_of(name))


def test_all_rounds_of_what_can_be_had_are_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def running(_name: str, _folder: Path) -> Iterator[Endpoint]:
        yield ENDPOINT

    def describe(name: str) -> str:
        if name == ETCD:
            raise NotAvailable("there is no Go")
        return "told"

    measured: list[Case] = []

    def measure(_endpoint: Endpoint, case: Case, *, seconds: float) -> Figures:
        measured.append(case)
        if case.operation == "INCR":
            raise ClusterFailed("it ended")
        return figures_of(seconds)

    monkeypatch.setattr(cluster, "FREE_BYTES_MIN", 0)
    monkeypatch.setattr(cluster, "IN_MEMORY", set())
    monkeypatch.setattr(systems, "running", running)
    monkeypatch.setattr(systems, "describe", describe)
    monkeypatch.setattr(compare, "measure", measure)
    monkeypatch.setattr(compare, "fill", lambda _endpoint: None)
    results = compare.compare(
        (ALWAYS, ETCD), Pace(seconds=3.0, rounds=2), folder=tmp_path, progress=lambda _step: None
    )
    assert results.missing == {ETCD: "there is no Go"}
    assert len(measured) == 2 * len(cases_of(ALWAYS))
    assert len(results.failed) == 2 * 9
    assert results.loads[ALWAYS][Case("SET", 1, 1).name].appends_per_second == 3.0


def test_goals_are_judged_by_the_requests_of_a_second() -> None:
    results = Results(disk="a disk")
    results.loads = {
        OURS: {case.name: figures_of(45) for case in CASES},
        DURABLE: {case.name: figures_of(500) for case in CASES},
        REDIS: {case.name: figures_of(100) for case in CASES},
        ETCD: {case.name: figures_of(10) for case in CASES},
        TWO: {},
    }
    judged = {verdict.what: verdict.is_reached for verdict in verdicts(results)}
    assert judged["GET, 50 × 1: zeppelin against redis"] is False
    assert judged["GET, 50 × 16: zeppelin against redis"] is True
    assert judged["MSET of 100, 50 × 1: zeppelin-durable against etcd"] is True
    assert judged["GET, 500 × 1: zeppelin against etcd"] is False
    assert not any("zeppelin-two" in what for what in judged)
    assert len(tables(results)) == 4
    assert "data on a disk" in notes(results)[-1]
