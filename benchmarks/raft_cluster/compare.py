"""The whole comparison: which systems there are, which cases they run, in which order."""

import importlib
import importlib.util
import pathlib
import statistics
from collections.abc import Callable

import msgspec

from benchmarks.raft_cluster.cluster import check_disk
from benchmarks.raft_cluster.dragonboat_system import DragonboatSystem
from benchmarks.raft_cluster.etcd_system import EtcdSystem
from benchmarks.raft_cluster.measure import (
    Figures,
    Idle,
    measure_failover,
    measure_idle,
    measure_load,
)
from benchmarks.raft_cluster.peers import CACHE
from benchmarks.raft_cluster.system import Load, NotAvailable, System

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


class Results(msgspec.Struct, kw_only=True):
    """All figures of one run, by system and then by the case's name."""

    disk: str
    systems: dict[str, str] = {}
    """What each system is: its version and settings."""
    missing: dict[str, str] = {}
    """Why a system was not run."""
    loads: dict[str, dict[str, Figures]] = {}
    failovers_ms: dict[str, list[float]] = {}
    idle: dict[str, Idle] = {}


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
    systems = []
    for name in names:
        progress(f"{name}: made ready")
        try:
            system = _system(name)
            results.systems[name] = system.prepare()
            systems.append(system)
        except NotAvailable as problem:
            results.missing[name] = str(problem)
    for case in CASES:
        _run_case(case, [s for s in systems if s.groups_max >= case.groups], pace, folder,
                  results, progress)  # fmt: skip
    _run_failovers(systems, pace, folder, results, progress)
    for system in systems:
        if system.groups_max >= IDLE_GROUPS:
            progress(f"{IDLE_GROUPS:,} idle groups: {system.name}")
            idle = measure_idle(system, folder, IDLE_GROUPS, pace.idle_s)
            results.idle[system.name] = idle
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


def _run_case(
    case: Case,
    systems: list[System],
    pace: Pace,
    folder: pathlib.Path,
    results: Results,
    progress: Callable[[str], None],
) -> None:
    taken: dict[str, list[Figures]] = {system.name: [] for system in systems}
    load = Load(
        in_flight=case.in_flight,
        payload_bytes=case.payload_bytes,
        warm_s=pace.warm_s,
        seconds=pace.seconds,
    )
    for _ in range(pace.rounds):
        for system in systems:
            progress(f"{case.name}: {system.name}")
            taken[system.name].append(measure_load(system, folder, case.groups, load))
    for name, rows in taken.items():
        results.loads.setdefault(name, {})[case.name] = _medians(rows)


def _run_failovers(
    systems: list[System],
    pace: Pace,
    folder: pathlib.Path,
    results: Results,
    progress: Callable[[str], None],
) -> None:
    load = Load(
        in_flight=FAILOVER_IN_FLIGHT, payload_bytes=100, warm_s=pace.warm_s, seconds=pace.seconds
    )
    for number in range(pace.failovers):
        for system in systems:
            progress(f"the leader's death, {number + 1} of {pace.failovers}: {system.name}")
            taken = results.failovers_ms.setdefault(system.name, [])
            taken.append(measure_failover(system, folder, load))


def _medians(rows: list[Figures]) -> Figures:
    return Figures(
        **{
            field: statistics.median(getattr(row, field) for row in rows)
            for field in Figures.__struct_fields__
        }
    )
