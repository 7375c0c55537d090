"""What was measured, as tables, and how far it is from what is to be reached."""

import statistics
from typing import Final

import rich.table

from benchmarks.harness.report import Goal, Verdict, goals_table, judged, table
from benchmarks.ledgers.compare import CASES, JAVA, LARGE, MANY, MOST, OURS, OWN, LedgerResults

GOALS: Final = (
    Goal(MANY.name, JAVA, "appends_per_second", 1.0),
    Goal(MOST.name, JAVA, "appends_per_second", 0.6),
    Goal(LARGE.name, JAVA, "megabytes_per_second", 0.95),
)
CPU_GOAL: Final = 1.0
VISIBLE_MS: Final = 3.0


def verdicts(results: LedgerResults) -> list[Verdict]:
    """The goals that this run says something about."""
    found = judged(results, OURS, GOALS)
    ours = results.loads.get(OURS, {}).get(MANY.name)
    java = results.loads.get(JAVA, {}).get(MANY.name)
    if ours is not None and java is not None:
        found.append(
            Verdict(
                what=f"{MANY.name}: the client's CPU per add against {JAVA}",
                measured=ours.client_cpu_us / java.client_cpu_us,
                goal=CPU_GOAL,
                unit="×",
                is_least=False,
            )
        )
    if results.visible_ms.get(OURS):
        found.append(
            Verdict(
                what="from an ack until a reader sees it, p50",
                measured=statistics.median(results.visible_ms[OURS]),
                goal=VISIBLE_MS,
                unit=" ms",
                is_least=False,
            )
        )
    return found


def tables(results: LedgerResults) -> list[rich.table.Table]:
    headings = ["case", "client", "adds/s", "MB/s", "p50 ms", "p99 ms", "client µs", "ours / it"]
    made = table("Adds to three bookies, no TLS; CPU per add", headings, left=2)
    for case in CASES:
        mine = results.loads.get(OURS, {}).get(case.name)
        for number, (name, rows) in enumerate(results.loads.items()):
            row = rows.get(case.name)
            if row is None:
                continue
            is_peer = mine is not None and name != OURS
            ratio = mine.appends_per_second / row.appends_per_second if mine else 0.0
            made.add_row(
                "" if number else case.name,
                name,
                f"{row.appends_per_second:,.0f}",
                f"{row.megabytes_per_second:,.1f}",
                f"{row.p50_ms:.2f}",
                f"{row.p99_ms:.2f}",
                f"{row.client_cpu_us:.1f}",
                f"{ratio:.2f}×" if is_peer else "",
            )
    shown = [made, _waits(results)]
    found = verdicts(results)
    return [*shown, goals_table("Ledgers: what is to be reached", found)] if found else shown


def _waits(results: LedgerResults) -> rich.table.Table:
    made = table("How long it takes, p50 in ms", ["what", OURS, OWN])
    for what, taken in (
        ("from an ack until a reader elsewhere sees it", results.visible_ms),
        ("nobody can write while another takes a busy log over", results.take_over_ms),
    ):
        cells = (f"{statistics.median(taken[name]):.2f}" if taken.get(name) else "" for name in
                 (OURS, OWN))  # fmt: skip
        made.add_row(what, *cells)
    return made
