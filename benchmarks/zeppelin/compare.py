"""The whole comparison: systems of one group take turns, case by case, round after round."""

import contextlib
import pathlib
from collections.abc import Callable

import msgspec

from benchmarks.harness.cluster import check_disk, check_space
from benchmarks.harness.comparison import Results, Steps
from benchmarks.harness.system import NotAvailable
from benchmarks.peers.programs import CACHE
from benchmarks.zeppelin import systems
from benchmarks.zeppelin.cases import CASES, GROUPS, SYSTEMS, cases_of
from benchmarks.zeppelin.loads import Endpoint, fill, measure


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How long things take."""

    seconds: float = 0.7
    rounds: int = 2


QUICK = Pace(seconds=0.2, rounds=1)


def compare(
    names: tuple[str, ...] = SYSTEMS,
    pace: Pace | None = None,
    *,
    folder: pathlib.Path = CACHE / "data",
    progress: Callable[[str], None] = print,
) -> Results:
    """Those that are named."""
    pace = pace or Pace()
    results = Results(disk=check_disk(folder))
    check_space(str(folder))
    steps = Steps(results, progress)
    for name in names:
        try:
            results.systems[name] = systems.describe(name)
        except NotAvailable as problem:
            results.missing[name] = str(problem)
    for group in GROUPS:
        wanted = [name for name in group if name in results.systems]
        with contextlib.ExitStack() as stack:
            running: dict[str, Endpoint] = {}
            for name in wanted:
                with steps.step(f"{name}: started"):
                    endpoint = stack.enter_context(systems.running(name, folder))
                    if not (endpoint.is_etcd or endpoint.is_cluster or endpoint.halves):
                        fill(endpoint)
                    running[name] = endpoint
            for number in range(1, pace.rounds + 1):
                _round(number, running, steps, pace)
    return results


def _round(number: int, running: dict[str, Endpoint], steps: Steps, pace: Pace) -> None:
    for case in CASES:
        for name, endpoint in running.items():
            if case in cases_of(name):
                with steps.step(f"round {number}: {case.name} on {name}"):
                    steps.loaded(name, case.name, measure(endpoint, case, seconds=pace.seconds))
