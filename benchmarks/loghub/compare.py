"""The whole comparison: which systems there are, and in which order they run the cases."""

import pathlib
from collections.abc import Callable, Iterator

import msgspec

from benchmarks.harness.cluster import Cluster, check_disk
from benchmarks.harness.comparison import Results, Steps
from benchmarks.harness.measure import measure_on
from benchmarks.loghub.cases import CASES, OURS, SHARDS, Case
from benchmarks.loghub.gateway_cluster import GatewayCluster
from benchmarks.loghub.loghub_system import LogHubSystem
from benchmarks.loghub.ways import CONSUME_ARROW, CONSUME_ONE, TOPICS
from benchmarks.peers.kafka_system import KafkaSystem
from benchmarks.peers.programs import CACHE

SYSTEMS = (OURS, "kafka-fsync", "kafka")
WARM_UP_S_MIN = 0.3
StreamSystem = LogHubSystem | KafkaSystem


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How long things take; the whole run is about a quarter of an hour at the default."""

    warm_s: float = 1.0
    seconds: float = 3.0
    rounds: int = 3
    warm_up_factor: float = 1.0
    """Of what a system asks for."""


QUICK = Pace(warm_s=0.3, seconds=0.7, rounds=1, warm_up_factor=0.1)


def compare(
    names: tuple[str, ...] = SYSTEMS,
    pace: Pace | None = None,
    *,
    folder: pathlib.Path = CACHE / "data",
    progress: Callable[[str], None] = print,
) -> Results:
    """In each round one system after the other runs all cases."""
    results = Results(disk=check_disk(folder))
    steps = Steps(results, progress)
    systems = steps.prepared(names, _system)
    pace = pace or Pace()
    for number in range(1, pace.rounds + 1):
        for system in systems:
            with steps.step(f"round {number}: {system.name}"):
                _round(system, pace, folder, steps)
    return results


def _system(name: str) -> StreamSystem:
    return (
        LogHubSystem()
        if name == OURS
        else KafkaSystem(is_synced=name == "kafka-fsync", topics=TOPICS)
    )


def _cluster(system: StreamSystem, folder: pathlib.Path) -> Cluster:
    made = GatewayCluster if isinstance(system, LogHubSystem) else Cluster
    return made(system, folder=folder, groups=SHARDS)


def _round(system: StreamSystem, pace: Pace, folder: pathlib.Path, steps: Steps) -> None:
    rows = list(_rows(system))
    with _cluster(system, folder) as cluster:
        cluster.settle()
        warm_up_s = max(WARM_UP_S_MIN, system.warm_up_s * pace.warm_up_factor / len(rows))
        for row, case, way in rows:
            with steps.step(f"warm-up, {case.name}: {row}"):
                measure_on(cluster, case.load(way, warm_s=0.0, seconds=warm_up_s))
        for row, case, way in rows:
            with steps.step(f"{case.name}: {row}"):
                load = case.load(way, warm_s=pace.warm_s, seconds=pace.seconds)
                steps.loaded(row, case.name, measure_on(cluster, load))


def _rows(system: StreamSystem) -> Iterator[tuple[str, Case, str]]:
    """The row, the case, and the way in which the client goes about it."""
    for case in CASES:
        if isinstance(system, LogHubSystem):
            yield from ((row, case, way) for row, way in case.ways.items())
        elif OURS in case.ways:
            way = case.ways[OURS]
            yield system.name, case, way if way in (CONSUME_ARROW, CONSUME_ONE) else ""
