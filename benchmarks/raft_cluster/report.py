"""What was measured, as tables, and how far it is from what is to be reached."""

import statistics
from collections.abc import Callable

import msgspec
import rich.table

from benchmarks.raft_cluster.compare import (
    BATCHES,
    CASES,
    GROUPS_2000,
    IDLE_GROUPS,
    MANY,
    MOST,
    ONE,
    Case,
    Results,
)

OURS = "raftwood"


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


class Goal(msgspec.Struct, frozen=True):
    """Ours as a multiple of a peer's, in one figure of one case."""

    case: Case
    peer: str
    figure: str
    factor: float
    is_least: bool = True


FIGURES = {"appends_per_second": "appends/s", "megabytes_per_second": "MB/s", "p99_ms": "p99"}
GOALS = (
    Goal(ONE, "etcd", "appends_per_second", 1.5),
    Goal(MANY, "etcd", "appends_per_second", 3.0),
    Goal(MANY, "etcd", "p99_ms", 0.5, is_least=False),
    Goal(BATCHES, "etcd", "megabytes_per_second", 3.0),
    Goal(MANY, "dragonboat", "appends_per_second", 0.8),
    Goal(MOST, "dragonboat", "appends_per_second", 0.5),
    Goal(BATCHES, "dragonboat", "megabytes_per_second", 1.5),
)
GROUPS_GOAL = 0.7
IDLE_GOALS = (
    ("cpu_percent", "busiest store", 3.0, " % of a core"),
    ("kilobytes_per_group", "memory of a group per store", 20.0, " kB"),
    ("restart_to_all_leaders_s", "all leaders after a restart", 5.0, " s"),
)


def verdicts(results: Results) -> list[Verdict]:
    """The goals that this run says something about."""
    ours = results.loads.get(OURS, {})
    found = []
    for goal in GOALS:
        mine, its = ours.get(goal.case.name), results.loads.get(goal.peer, {}).get(goal.case.name)
        if mine is not None and its is not None:
            found.append(
                Verdict(
                    what=f"{goal.case.name}: {FIGURES[goal.figure]} against {goal.peer}",
                    measured=getattr(mine, goal.figure) / getattr(its, goal.figure),
                    goal=goal.factor,
                    unit="×",
                    is_least=goal.is_least,
                )
            )
    many, one = ours.get(GROUPS_2000.name), ours.get(MOST.name)
    if many is not None and one is not None:
        found.append(
            Verdict(
                what="2,000 groups against one, 512 in flight",
                measured=many.appends_per_second / one.appends_per_second,
                goal=GROUPS_GOAL,
                unit="×",
                is_least=True,
            )
        )
    return found + _idle_verdicts(results)


def _idle_verdicts(results: Results) -> list[Verdict]:
    idle = results.idle.get(OURS)
    if idle is None:
        return []
    return [
        Verdict(
            what=f"{IDLE_GROUPS:,} idle groups: {what}",
            measured=getattr(idle, field),
            goal=goal,
            unit=unit,
            is_least=False,
        )
        for field, what, goal, unit in IDLE_GOALS
    ]


def tables(results: Results) -> list[rich.table.Table]:
    made = [_loads(results), _failovers(results)]
    if results.idle:
        made.append(_idle(results))
    judged = verdicts(results)
    if judged:
        goals = _table("Raft: what is to be reached", ["goal", "measured", "to reach", "reached"])
        for verdict in judged:
            goals.add_row(*verdict.shown())
        made.append(goals)
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


def _table(title: str, headings: list[str], *, left: int = 1) -> rich.table.Table:
    made = rich.table.Table(title=title)
    for position, heading in enumerate(headings):
        made.add_column(heading, justify="left" if position < left else "right")
    return made


def _loads(results: Results) -> rich.table.Table:
    headings = ["case", "system", "appends/s", "MB/s", "p50 ms", "p99 ms", "leader µs"]
    headings += ["follower µs", "client µs", "ours / it"]
    made = _table("Raft, three nodes, fsync on, no TLS; CPU per append", headings, left=2)
    for case in CASES:
        named = case.name
        for system, rows in results.loads.items():
            row = rows.get(case.name)
            if row is None:
                continue
            ours = results.loads.get(OURS, {}).get(case.name)
            ratio = ours.appends_per_second / row.appends_per_second if ours else None
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
                "" if ratio is None or system == OURS else f"{ratio:.2f}×",
            )
            named = ""
    return made


def _failovers(results: Results) -> rich.table.Table:
    made = _table("Leader killed under load: ms to the first acked write",
                  ["system", "median", "least", "most", "runs"])  # fmt: skip
    reductions: tuple[Callable[[list[float]], float], ...] = (statistics.median, min, max)
    for system, taken in results.failovers_ms.items():
        made.add_row(system, *(f"{reduce(taken):,.0f}" for reduce in reductions), str(len(taken)))
    return made


def _idle(results: Results) -> rich.table.Table:
    headings = ["system", "% of a core", "kB per group", "s from restart to all leaders"]
    made = _table(f"{IDLE_GROUPS:,} idle groups, worst of three stores", headings)
    for system, idle in results.idle.items():
        made.add_row(
            system,
            f"{idle.cpu_percent:.1f}",
            f"{idle.kilobytes_per_group:.1f}",
            f"{idle.restart_to_all_leaders_s:.1f}",
        )
    return made
