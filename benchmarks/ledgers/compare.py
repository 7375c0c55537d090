"""The whole comparison: both clients in turns on the same three bookies, round after round; and our
client on three bookies of our own.
"""

import asyncio
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import msgspec
from tests.kits.dlog.bookie_processes import bookie_processes
from tests.kits.install import maven
from tests.kits.install.cache import NotInstalled
from tests.kits.servers import bookkeeper as bookkeeper_cluster
from tests.kits.servers.bookkeeper import BookKeeperCluster

from benchmarks.harness.cluster import ClusterFailed, check_disk
from benchmarks.harness.comparison import Results, Steps
from benchmarks.harness.measure import Figures
from benchmarks.peers.programs import CACHE, REPOSITORY, SOURCES

OURS, JAVA, OWN = "raftwood", "java", "own bookies"
SYSTEMS = (OURS, JAVA, OWN)
LOAD_EXTRA_S = 120.0
VISIBLE_TIMES = 100
TAKE_OVERS = 20


class Case(msgspec.Struct, frozen=True):
    """One kind of load."""

    name: str
    in_flight: int
    payload_bytes: int


ONE = Case("100 B, 1 in flight", 1, 100)
MANY = Case("100 B, 64 in flight", 64, 100)
MOST = Case("100 B, 512 in flight", 512, 100)
LARGE = Case("64 kB, 64 in flight", 64, 65_536)
CASES = (ONE, MANY, MOST, LARGE)


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How long things take."""

    warm_up_s: float = 20.0
    """Java compiles what is busy meanwhile; both clients get it."""
    warm_s: float = 1.0
    seconds: float = 4.0
    rounds: int = 3


QUICK = Pace(warm_up_s=1.0, warm_s=0.3, seconds=0.7, rounds=1)


class LedgerResults(Results, kw_only=True):
    """By system, medians of each round."""

    visible_ms: dict[str, list[float]] = msgspec.field(default_factory=dict)
    """From an ack until a reader elsewhere sees the entry."""
    take_over_ms: dict[str, list[float]] = msgspec.field(default_factory=dict)
    """For how long nobody can write while one writer takes over from another."""


def compare(
    names: tuple[str, ...] = SYSTEMS,
    pace: Pace | None = None,
    *,
    folder: pathlib.Path = CACHE / "data",
    progress: Callable[[str], None] = print,
) -> LedgerResults:
    """Those that are named."""
    pace = pace or Pace()
    results = LedgerResults(disk=check_disk(folder))
    steps = Steps(results, progress)
    try:
        java = maven.compile_program(
            SOURCES / "bookkeeper" / "AddLoad.java", bookkeeper_cluster.install()
        )
    except NotInstalled as problem:
        results.missing = dict.fromkeys(names, str(problem))
        return results
    about = f"BookKeeper {bookkeeper_cluster.VERSION}, E=3 W=3 A=2, CRC32C, protocol v2"
    results.systems = dict.fromkeys(names, about)
    if JAVA in names:
        results.systems[JAVA] += ", its own limit of 5,000 adds per second turned off"
    if OWN in names:
        results.systems[OWN] = "`raftwood bookie start` × 3, E=3 W=3 A=2, CRC32C"
    with (
        BookKeeperCluster(bookies=3, folder=folder) as cluster,
        _own_bookies(folder, is_wanted=OWN in names) as config,
    ):
        commands = {OURS: _ours(cluster.address), JAVA: _java(cluster, java)}
        commands[OWN] = _ours(f"config={config}")
        for number in range(1, pace.rounds + 1):
            for name in names:
                with steps.step(f"round {number}: {name}"):
                    _round(name, commands[name], pace, steps, results)
    return results


@contextlib.contextmanager
def _own_bookies(folder: pathlib.Path, *, is_wanted: bool) -> Iterator[str]:
    """The file of settings by which they are reached."""
    if not is_wanted:
        yield ""
        return
    with (
        tempfile.TemporaryDirectory(dir=folder) as own,
        bookie_processes(pathlib.Path(own), 3) as processes,
    ):
        asyncio.run(processes.start())
        yield str(processes.config)


def _ours(target: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.ledgers.add_load", target]


def _java(cluster: BookKeeperCluster, classes: str) -> list[str]:
    uri = f"zk+longhierarchical://{cluster.address}"
    folder = cluster.bookies[0].folder
    command = bookkeeper_cluster.java_command(folder, "-Xmx1g", "AddLoad", uri, classes=classes)
    # A client that lasts: with Java's own collector, and compiled as far as it goes.
    few = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    return [word for word in command if word not in few]


def _round(name: str, command: list[str], pace: Pace, steps: Steps, results: LedgerResults) -> None:
    """All cases in one process."""
    asked = [f"{MANY.in_flight}:{MANY.payload_bytes}:{pace.warm_up_s}:0.1"]
    asked += [f"{each.in_flight}:{each.payload_bytes}:{pace.warm_s}:{pace.seconds}"
              for each in CASES]  # fmt: skip
    if name != JAVA:
        asked += [f"visible:{VISIBLE_TIMES}", f"takeover:{TAKE_OVERS}"]
    try:
        done = subprocess.run(
            (*command, *asked),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
            timeout=LOAD_EXTRA_S + pace.warm_up_s + len(CASES) * (pace.warm_s + pace.seconds),
        )
    except subprocess.SubprocessError as problem:
        # Not the command, which names places of this machine.
        said = (getattr(problem, "stderr", "") or "").strip().splitlines()[-1:]
        raise ClusterFailed(" ".join(said) or f"ended by {type(problem).__name__}") from problem
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for case, found in zip(CASES, lines[1:], strict=False):
        steps.loaded(name, case.name, _figures(case, found))
    for each in lines:
        if "visible_p50_ms" in each:
            results.visible_ms.setdefault(name, []).append(each["visible_p50_ms"])
        if "take_over_p50_ms" in each:
            results.take_over_ms.setdefault(name, []).append(each["take_over_p50_ms"])


def _figures(case: Case, found: dict[str, float]) -> Figures:
    rate = found["count"] / found["elapsed_s"]
    return Figures(
        appends_per_second=rate,
        megabytes_per_second=rate * case.payload_bytes / 1e6,
        p50_ms=found["p50_ms"],
        p99_ms=found["p99_ms"],
        leader_cpu_us=0.0,
        follower_cpu_us=0.0,
        client_cpu_us=found["client_cpu_s"] / found["count"] * 1e6,
    )
