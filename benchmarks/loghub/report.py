"""What was measured, as tables, and how far it is from what is to be reached."""

import rich.table

from benchmarks.harness.comparison import Results
from benchmarks.harness.report import Verdict, goals_table, table
from benchmarks.loghub.cases import (
    CASES,
    OURS,
    Case,
    consume_batches,
    consume_one,
    produce_batches,
    produce_one,
)
from benchmarks.loghub.ways import SIZES

SYNCED, UNSYNCED = "kafka-fsync", "kafka"


def _goals() -> list[tuple[Case, str, float]]:
    """A case, whom it is compared with, and how many times its records per second."""
    goals = []
    for size in SIZES:
        goals += [
            (produce_batches(size), SYNCED, 2.0),
            (produce_batches(size), UNSYNCED, 1.0),
            (consume_batches(size), SYNCED, 2.0),
            (produce_one(size), SYNCED, 1.0),
            (consume_one(size), SYNCED, 1.0),
        ]
    return goals


def verdicts(results: Results) -> list[Verdict]:
    """The goals that this run says something about."""
    found = []
    for case, peer, factor in _goals():
        ours = results.loads.get(OURS, {}).get(case.name)
        its = results.loads.get(peer, {}).get(case.name)
        if ours is not None and its is not None:
            found.append(
                Verdict(
                    what=f"{case.name}: records/s against {peer}",
                    measured=ours.appends_per_second / its.appends_per_second,
                    goal=factor,
                    unit="×",
                    is_least=True,
                )
            )
    return found


def tables(results: Results) -> list[rich.table.Table]:
    found = verdicts(results)
    made = [_loads(results)]
    return [*made, goals_table("LogHub: what is to be reached", found)] if found else made


def _loads(results: Results) -> rich.table.Table:
    headings = ["case", "system", "records/s", "MB/s", "p50 ms", "p99 ms", "servers µs"]
    made = table(
        "Streams, three nodes, no TLS; CPU per record, of all servers together",
        [*headings, "client µs", "ours / it"],
        left=2,
    )
    for case in CASES:
        named = case.name
        ours = results.loads.get(OURS, {}).get(case.name)
        for system, rows in results.loads.items():
            row = rows.get(case.name)
            if row is None:
                continue
            ratio = ours.appends_per_second / row.appends_per_second if ours else None
            made.add_row(
                named,
                system,
                f"{row.appends_per_second:,.0f}",
                f"{row.megabytes_per_second:,.1f}",
                f"{row.p50_ms:.2f}",
                f"{row.p99_ms:.2f}",
                f"{row.servers_cpu_us:.2f}",
                f"{row.client_cpu_us:.2f}",
                "" if ratio is None or system == OURS else f"{ratio:.2f}×",
            )
            named = ""
    return made
