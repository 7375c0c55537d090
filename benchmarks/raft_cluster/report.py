"""What was measured, as tables, and how far it is from what is to be reached."""

import rich.table

from benchmarks.harness.report import (
    Goal,
    Verdict,
    failovers_table,
    goals_table,
    judged,
    loads_table,
    table,
)
from benchmarks.raft_cluster.compare import (
    BATCHES,
    CASES,
    GROUPS_2000,
    IDLE_GROUPS,
    MANY,
    MOST,
    ONE,
    Results,
)

OURS = "raftwood"
GOALS = (
    Goal(ONE.name, "etcd", "appends_per_second", 1.5),
    Goal(MANY.name, "etcd", "appends_per_second", 3.0),
    Goal(MANY.name, "etcd", "p99_ms", 0.5, is_least=False),
    Goal(BATCHES.name, "etcd", "megabytes_per_second", 3.0),
    Goal(MANY.name, "dragonboat", "appends_per_second", 0.8),
    Goal(MOST.name, "dragonboat", "appends_per_second", 0.5),
    Goal(BATCHES.name, "dragonboat", "megabytes_per_second", 1.5),
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
    found = judged(results, OURS, GOALS)
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
    title = "Raft, three nodes, fsync on, no TLS; CPU per append"
    cases = [case.name for case in CASES]
    made = [loads_table(title, results, ours=OURS, cases=cases), failovers_table(results)]
    if results.idle:
        made.append(_idle(results))
    found = verdicts(results)
    return [*made, goals_table("Raft: what is to be reached", found)] if found else made


def _idle(results: Results) -> rich.table.Table:
    headings = ["system", "% of a core", "kB per group", "s from restart to all leaders"]
    made = table(f"{IDLE_GROUPS:,} idle groups, worst of three stores", headings)
    for system, idle in results.idle.items():
        made.add_row(
            system,
            f"{idle.cpu_percent:.1f}",
            f"{idle.kilobytes_per_group:.1f}",
            f"{idle.restart_to_all_leaders_s:.1f}",
        )
    return made
