"""Several systems measured in one run: what was found, and what went wrong on the way."""

import contextlib
import statistics
from collections.abc import Callable, Iterator

import msgspec

from benchmarks.harness.cluster import ClusterFailed
from benchmarks.harness.measure import Figures
from benchmarks.harness.system import NotAvailable, SomeSystem


class Results(msgspec.Struct, kw_only=True):
    """All figures of one run, by system and then by the case's name."""

    disk: str
    systems: dict[str, str] = {}
    """What each system is: its version and settings."""
    missing: dict[str, str] = {}
    """Why a system was not run."""
    failed: list[str] = []
    """What went wrong in a case of a system; the others went on."""
    loads: dict[str, dict[str, Figures]] = {}
    failovers_ms: dict[str, list[float]] = {}


class Steps:
    """The run goes on where a system is missing or a measurement fails, and the results say so."""

    def __init__(self, results: Results, progress: Callable[[str], None]) -> None:
        self._results, self._progress = results, progress
        self._taken: dict[tuple[str, str], list[Figures]] = {}

    def prepared(
        self, names: tuple[str, ...], make: Callable[[str], SomeSystem]
    ) -> list[SomeSystem]:
        """Those of the named systems that this machine can run."""
        systems = []
        for name in names:
            self._progress(f"{name}: made ready")
            try:
                system = make(name)
                self._results.systems[name] = system.prepare()
                systems.append(system)
            except NotAvailable as problem:
                self._results.missing[name] = str(problem)
        return systems

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        self._progress(name)
        try:
            yield
        except (ClusterFailed, OSError) as problem:
            self._results.failed.append(f"{name}: {problem}")
            self._progress(f"failed: {problem}")

    def loaded(self, system: str, case: str, figures: Figures) -> None:
        """Keep the median of all rounds so far."""
        rows = self._taken.setdefault((system, case), [])
        rows.append(figures)
        self._results.loads.setdefault(system, {})[case] = _medians(rows)

    def failed_over(self, system: str, took_ms: float) -> None:
        self._results.failovers_ms.setdefault(system, []).append(took_ms)


def _medians(rows: list[Figures]) -> Figures:
    return Figures(
        **{
            field: statistics.median(getattr(row, field) for row in rows)
            for field in Figures.__struct_fields__
        }
    )
