"""What was measured, as tables, and how far it is from what is to be reached."""

import statistics

import rich.table

from benchmarks.harness.comparison import Results
from benchmarks.harness.report import (
    Goal,
    Verdict,
    failovers_table,
    goals_table,
    judged,
    loads_table,
)
from benchmarks.logservice.compare import BATCHES, CASES, MANY, MOST, MOST_SHARDS

OURS = "logservice"
GOALS = (
    Goal(MANY.name, "etcd", "appends_per_second", 3.0),
    Goal(BATCHES.name, "kafka-fsync", "appends_per_second", 2.0),
    Goal(BATCHES.name, "kafka", "appends_per_second", 1.0),
)
SHARDS_GOAL = 0.8
FAILOVER_GOALS = {"etcd": 1.0, "kafka": 0.5}


def verdicts(results: Results) -> list[Verdict]:
    """The goals that this run says something about."""
    ours = results.loads.get(OURS, {})
    found = judged(results, OURS, GOALS)
    many, one = ours.get(MOST_SHARDS.name), ours.get(MOST.name)
    if many is not None and one is not None:
        found.append(
            Verdict(
                what="64 shards against one, 512 in flight",
                measured=many.appends_per_second / one.appends_per_second,
                goal=SHARDS_GOAL,
                unit="×",
                is_least=True,
            )
        )
    return found + _failover_verdicts(results)


def _failover_verdicts(results: Results) -> list[Verdict]:
    ours = results.failovers_ms.get(OURS)
    if not ours:
        return []
    return [
        Verdict(
            what=f"the leader's death: median against {peer}",
            measured=statistics.median(ours) / statistics.median(results.failovers_ms[peer]),
            goal=goal,
            unit="×",
            is_least=False,
        )
        for peer, goal in FAILOVER_GOALS.items()
        if peer in results.failovers_ms
    ]


def tables(results: Results) -> list[rich.table.Table]:
    title = "Logs, three nodes, no TLS; CPU per record"
    cases = [case.name for case in CASES]
    made = [loads_table(title, results, ours=OURS, cases=cases), failovers_table(results)]
    found = verdicts(results)
    return [*made, goals_table("Logservice: what is to be reached", found)] if found else made
