"""The whole comparison: which systems there are, which cases they run, in which order."""

import importlib
import importlib.util
import pathlib
from collections.abc import Callable

import msgspec

from benchmarks.harness import comparison
from benchmarks.harness.cluster import check_disk
from benchmarks.harness.measure import measure_failover, measure_load
from benchmarks.harness.system import Load, NotAvailable, System
from benchmarks.peers.dragonboat_system import DragonboatSystem
from benchmarks.peers.etcd_system import EtcdSystem
from benchmarks.peers.programs import CACHE
from benchmarks.raft_cluster.idle import Idle, measure_idle

SYSTEMS = ("raftwood", "etcd", "dragonboat")
OURS = "benchmarks.raft_cluster.raftwood_system"
IDLE_GROUPS = 1000
FAILOVER_IN_FLIGHT = 64


class Case(msgspec.Struct, frozen=True):
    name: str
    payload_bytes: int
    in_flight: int
    groups: int = 1


ONE = Case("100 B, 1 in flight", 100, 1)
MANY = Case("100 B, 64 in flight", 100, 64)
MOST = Case("100 B, 512 in flight", 100, 512)
BATCHES = Case("64 kB, 8 in flight", 65_536, 8)
GROUPS_256 = Case("100 B, 512 in flight, 256 groups", 100, 512, 256)
GROUPS_2000 = Case("100 B, 512 in flight, 2,000 groups", 100, 512, 2000)
CASES = (ONE, MANY, MOST, BATCHES, GROUPS_256, GROUPS_2000)


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How long things take; the whole run is about six minutes at the default."""

    warm_s: float = 2.0
    seconds: float = 6.0
    rounds: int = 1
    failovers: int = 3
    idle_s: float = 5.0


QUICK = Pace(warm_s=0.5, seconds=1.0, failovers=1, idle_s=1.0)


class Results(comparison.Results, kw_only=True):
    """Also of groups that have nothing to do."""

    idle: dict[str, Idle] = msgspec.field(default_factory=dict)


def compare(
    names: tuple[str, ...] = SYSTEMS,
    pace: Pace | None = None,
    *,
    folder: pathlib.Path = CACHE / "data",
    progress: Callable[[str], None] = print,
) -> Results:
    """Each case is run by one system after the other, as often as there are rounds."""
    pace = pace or Pace()
    results = Results(disk=check_disk(folder))
    steps = comparison.Steps(results, progress)
    run = _Run(steps.prepared(names, _system), pace, folder, results, steps)
    for case in CASES:
        run.case(case)
    run.failovers()
    run.idle()
    return results


def _system(name: str) -> System:
    if name == "etcd":
        return EtcdSystem()
    if name == "dragonboat":
        return DragonboatSystem()
    if importlib.util.find_spec(OURS) is None:
        raise NotAvailable(f"there is no {OURS} yet")
    system: System = importlib.import_module(OURS).RaftwoodSystem()
    return system


class _Run:
    """The systems take turns."""

    def __init__(
        self,
        systems: list[System],
        pace: Pace,
        folder: pathlib.Path,
        results: Results,
        steps: comparison.Steps,
    ) -> None:
        self._systems, self._pace, self._folder = systems, pace, folder
        self._results, self._steps = results, steps

    def case(self, case: Case) -> None:
        load = self._load(case.in_flight, payload_bytes=case.payload_bytes)
        for _ in range(self._pace.rounds):
            for system in self._with_groups(case.groups):
                with self._steps.step(f"{case.name}: {system.name}"):
                    figures = measure_load(system, self._folder, case.groups, load)
                    self._steps.loaded(system.name, case.name, figures)

    def failovers(self) -> None:
        load = self._load(FAILOVER_IN_FLIGHT, payload_bytes=100)
        for number in range(1, self._pace.failovers + 1):
            for system in self._systems:
                with self._steps.step(f"the leader's death, {number}: {system.name}"):
                    took_ms = measure_failover(system, self._folder, load)
                    self._steps.failed_over(system.name, took_ms)

    def idle(self) -> None:
        for system in self._with_groups(IDLE_GROUPS):
            with self._steps.step(f"{IDLE_GROUPS:,} idle groups: {system.name}"):
                idle = measure_idle(system, self._folder, IDLE_GROUPS, self._pace.idle_s)
                self._results.idle[system.name] = idle

    def _with_groups(self, groups: int) -> list[System]:
        return [system for system in self._systems if system.groups_max >= groups]

    def _load(self, in_flight: int, *, payload_bytes: int) -> Load:
        return Load(
            in_flight=in_flight,
            payload_bytes=payload_bytes,
            warm_s=self._pace.warm_s,
            seconds=self._pace.seconds,
        )
