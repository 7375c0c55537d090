"""What was measured, as tables, and how far it is from what is to be reached."""

import statistics
from collections.abc import Callable, Sequence

import msgspec
import rich.table

from benchmarks.harness.comparison import Results


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One goal beside what was measured."""

    what: str
    measured: float
    goal: float
    unit: str
    is_least: bool

    @property
    def is_reached(self) -> bool:
        return self.measured >= self.goal if self.is_least else self.measured <= self.goal

    def shown(self) -> tuple[str, str, str, str]:
        sign = "≥" if self.is_least else "≤"
        return (
            self.what,
            f"{self.measured:.2f}{self.unit}",
            f"{sign} {self.goal:g}{self.unit}",
            "yes" if self.is_reached else "no",
        )


FIGURES = {"appends_per_second": "appends/s", "megabytes_per_second": "MB/s", "p99_ms": "p99"}


class Goal(msgspec.Struct, frozen=True):
    """Ours as a multiple of a peer's, in one figure of one case."""

    case: str
    peer: str
    figure: str
    factor: float
    is_least: bool = True


FIGURES = {"appends_per_second": "appends/s", "megabytes_per_second": "MB/s", "p99_ms": "p99"}


def judged(results: Results, ours: str, goals: Sequence[Goal]) -> list[Verdict]:
    """The goals that this run says something about."""
    found = []
    for goal in goals:
        mine = results.loads.get(ours, {}).get(goal.case)
        its = results.loads.get(goal.peer, {}).get(goal.case)
        if mine is not None and its is not None:
            found.append(
                Verdict(
                    what=f"{goal.case}: {FIGURES[goal.figure]} against {goal.peer}",
                    measured=getattr(mine, goal.figure) / getattr(its, goal.figure),
                    goal=goal.factor,
                    unit="×",
                    is_least=goal.is_least,
                )
            )
    return found


def table(title: str, headings: list[str], *, left: int = 1) -> rich.table.Table:
    made = rich.table.Table(title=title)
    for position, heading in enumerate(headings):
        made.add_column(heading, justify="left" if position < left else "right")
    return made


def goals_table(title: str, verdicts: list[Verdict]) -> rich.table.Table:
    made = table(title, ["goal", "measured", "to reach", "reached"])
    for verdict in verdicts:
        made.add_row(*verdict.shown())
    return made


def loads_table(
    title: str, results: Results, *, ours: str, cases: Sequence[str]
) -> rich.table.Table:
    headings = ["case", "system", "appends/s", "MB/s", "p50 ms", "p99 ms", "leader µs"]
    headings += ["follower µs", "client µs", "ours / it"]
    made = table(title, headings, left=2)
    for case in cases:
        named = case
        for system, rows in results.loads.items():
            row = rows.get(case)
            if row is None:
                continue
            mine = results.loads.get(ours, {}).get(case)
            ratio = mine.appends_per_second / row.appends_per_second if mine else None
            made.add_row(
                named,
                system,
                f"{row.appends_per_second:,.0f}",
                f"{row.megabytes_per_second:,.1f}",
                f"{row.p50_ms:.2f}",
                f"{row.p99_ms:.2f}",
                f"{row.leader_cpu_us:.1f}",
                f"{row.follower_cpu_us:.1f}",
                f"{row.client_cpu_us:.1f}",
                "" if ratio is None or system == ours else f"{ratio:.2f}×",
            )
            named = ""
    return made


def failovers_table(results: Results) -> rich.table.Table:
    made = table("Leader killed under load: ms to the first acked write",
                  ["system", "median", "least", "most", "runs"])  # fmt: skip
    reductions: tuple[Callable[[list[float]], float], ...] = (statistics.median, min, max)
    for system, taken in results.failovers_ms.items():
        made.add_row(system, *(f"{reduce(taken):,.0f}" for reduce in reductions), str(len(taken)))
    return made


def statements(results: Results) -> list[str]:
    """What the figures were measured on: versions, settings, and what could not be run."""
    lines = [f"- {name}: {described}" for name, described in results.systems.items()]
    lines += [f"- {name}: not available: {reason}" for name, reason in results.missing.items()]
    lines += [f"- failed: {problem}" for problem in results.failed]
    return [
        *lines,
        f"- three nodes and the client on loopback, no TLS anywhere; data on {results.disk}",
    ]
