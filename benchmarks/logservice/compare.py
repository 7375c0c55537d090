"""The whole comparison: which systems there are, which cases they run, in which order."""

import importlib
import importlib.util
import pathlib
from collections.abc import Callable
from typing import Protocol

import msgspec

from benchmarks.harness.cluster import Cluster, check_disk
from benchmarks.harness.comparison import Results, Steps
from benchmarks.harness.measure import measure_failover, measure_on
from benchmarks.harness.system import Load, NotAvailable, System
from benchmarks.peers.etcd_system import EtcdSystem
from benchmarks.peers.kafka_system import KafkaSystem
from benchmarks.peers.programs import CACHE

SYSTEMS = ("logservice", "etcd", "kafka-fsync", "kafka")
OURS = "benchmarks.logservice.logservice_system"
KILLS = {"logservice": 5, "etcd": 5, "kafka": 3}
"""Of Kafka only with its default settings: what it syncs has no part in the time it takes."""
SHARDS = 64
BATCHED_RECORDS = 100_000
"""Records that a client may hold before they are acked: what librdkafka holds by default."""


class LogSystem(System, Protocol):
    """What is asked of a system beyond raft's benchmark; groups are its shards or partitions.

    A load is told how many `clients` share the appends in flight; a system may serve them all
    through one connection where that is better for it, and says so in what `prepare` returns. At a
    leader's death the client that was under load goes on, told of all nodes and with the retries
    that are its default; it starts an append every 5 ms and the first acked of those counts.
    """

    @property
    def has_batches(self) -> bool:
        """Whether its client puts many records into one append."""

    @property
    def warm_up_s(self) -> float:
        """How long a new cluster needs under load to reach its speed."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of load; `in_flight` is of all clients together."""

    name: str
    payload_bytes: int
    clients: int
    in_flight: int
    shards: int = 1
    is_batched: bool = False

    def load(self, *, warm_s: float, seconds: float) -> Load:
        return Load(
            in_flight=self.in_flight,
            payload_bytes=self.payload_bytes,
            warm_s=warm_s,
            seconds=seconds,
            clients=self.clients,
            shards=self.shards,
            is_batched=self.is_batched,
        )


def _case(size: str, clients: int, shards: int) -> Case:
    return Case(
        name=f"{size}, {_counted(clients, 'client')}, {_counted(shards, 'shard')}",
        payload_bytes={"100 B": 100, "64 kB": 65_536}[size],
        clients=clients,
        in_flight=clients,
        shards=shards,
    )


def _most(shards: int) -> Case:
    return Case(
        name=f"100 B, 512 in flight, {_counted(shards, 'shard')}",
        payload_bytes=100,
        clients=64,
        in_flight=512,
        shards=shards,
    )


def _batches(shards: int) -> Case:
    return Case(
        name=f"100 B in batches, {_counted(shards, 'shard')}",
        payload_bytes=100,
        clients=1,
        in_flight=BATCHED_RECORDS,
        shards=shards,
        is_batched=True,
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


MANY = _case("100 B", 64, 1)
MOST, MOST_SHARDS = _most(1), _most(SHARDS)
BATCHES = _batches(1)
CASES = (
    _case("100 B", 1, 1),
    MANY,
    _case("100 B", 1, SHARDS),
    _case("100 B", 64, SHARDS),
    MOST,
    MOST_SHARDS,
    BATCHES,
    _batches(SHARDS),
    # Last, since they leave much behind.
    _case("64 kB", 1, 1),
    _case("64 kB", 64, 1),
    _case("64 kB", 1, SHARDS),
    _case("64 kB", 64, SHARDS),
)


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How long things take; the whole run is about a quarter of an hour at the default."""

    warm_s: float = 1.0
    seconds: float = 3.0
    rounds: int = 3
    kills_most: int = 5
    warm_up_factor: float = 1.0
    """Of what a system asks for."""


QUICK = Pace(warm_s=0.3, seconds=0.7, rounds=1, kills_most=1, warm_up_factor=0.1)


def compare(
    names: tuple[str, ...] = SYSTEMS,
    pace: Pace | None = None,
    *,
    folder: pathlib.Path = CACHE / "data",
    progress: Callable[[str], None] = print,
) -> Results:
    """In each round one system after the other runs all cases; the leaders' deaths come last."""
    results = Results(disk=check_disk(folder))
    steps = Steps(results, progress)
    run = _Run(steps.prepared(names, _system), pace or Pace(), folder, steps)
    run.loads()
    run.failovers()
    return results


def _system(name: str) -> LogSystem:
    if name == "etcd":
        return EtcdSystem(has_one_client=True)
    if name.startswith("kafka"):
        return KafkaSystem(is_synced=name == "kafka-fsync")
    if importlib.util.find_spec(OURS) is None:
        raise NotAvailable(f"there is no {OURS} yet")
    system: LogSystem = importlib.import_module(OURS).LogserviceSystem()
    return system


class _Run:
    """The systems take turns."""

    def __init__(
        self, systems: list[LogSystem], pace: Pace, folder: pathlib.Path, steps: Steps
    ) -> None:
        self._systems, self._pace, self._folder, self._steps = systems, pace, folder, steps

    def loads(self) -> None:
        for number in range(1, self._pace.rounds + 1):
            for system in self._systems:
                with self._steps.step(f"round {number}: {system.name}"):
                    self._round(system)

    def _round(self, system: LogSystem) -> None:
        cases = [
            case
            for case in CASES
            if case.shards <= system.groups_max and (system.has_batches or not case.is_batched)
        ]
        groups = min(SHARDS, system.groups_max)
        with Cluster(system, folder=self._folder, groups=groups) as cluster:
            cluster.settle()
            warm_up_s = system.warm_up_s * self._pace.warm_up_factor / len(cases)
            for case in cases:
                with self._steps.step(f"warm-up, {case.name}: {system.name}"):
                    measure_on(cluster, case.load(warm_s=0.0, seconds=warm_up_s))
            for case in cases:
                with self._steps.step(f"{case.name}: {system.name}"):
                    load = case.load(warm_s=self._pace.warm_s, seconds=self._pace.seconds)
                    self._steps.loaded(system.name, case.name, measure_on(cluster, load))

    def failovers(self) -> None:
        load = MANY.load(warm_s=self._pace.warm_s, seconds=self._pace.seconds)
        for number in range(1, self._pace.kills_most + 1):
            for system in self._systems:
                if number <= KILLS.get(system.name, 0):
                    with self._steps.step(f"the leader's death, {number}: {system.name}"):
                        took_ms = measure_failover(system, self._folder, load)
                        self._steps.failed_over(system.name, took_ms)
