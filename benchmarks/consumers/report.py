"""What was measured, as tables, and how far it is from what is to be reached."""

import statistics
from collections.abc import Sequence
from typing import Final

import rich.table

from benchmarks.consumers import rates
from benchmarks.consumers.compare import GroupResults
from benchmarks.consumers.groups import PostgresGroup, SqliteGroup
from benchmarks.consumers.moving import MEMBERS, SHARDS
from benchmarks.harness.report import Goal, Verdict, goals_table, judged, table

HAND_OVER_MS: Final = 200
FAILOVER_MS: Final = 20_000
"""Twice the lease timeout."""
MOVES: Final = SHARDS - SHARDS // MEMBERS
RATE_GOALS: Final = tuple(Goal(rates.case(n), rates.KAFKA, "appends_per_second", 1.0)
                          for n in rates.SHARDS)  # fmt: skip


def verdicts(results: GroupResults) -> list[Verdict]:
    """The goals that this run says something about."""
    found = []
    for name in (SqliteGroup.name, PostgresGroup.name):
        moved = results.moved.get(name)
        if moved is None or not moved.failovers_ms:
            continue
        measured = {
            "p99 of a steal's commit to the first process()": (_p99(moved.hand_overs_ms), " ms"),
            "the longest failover after kill -9": (max(moved.failovers_ms), " ms"),
            "rounds to balance, the most": (max(each.rounds for each in moved.joins), ""),
            "moves to balance, the most": (max(each.moves for each in moved.joins), ""),
        }
        goals = (HAND_OVER_MS, FAILOVER_MS, 1, MOVES)
        for (what, (value, unit)), goal in zip(measured.items(), goals, strict=True):
            found.append(
                Verdict(
                    what=f"{name}: {what}", measured=value, goal=goal, unit=unit, is_least=False
                )
            )
    return found + judged(results, rates.OURS, RATE_GOALS)


def tables(results: GroupResults) -> list[rich.table.Table]:
    made = [_moves(results), _times(results)] if results.moved else []
    made += [_rates(results)] if results.loads else []
    found = verdicts(results)
    return [*made, goals_table("Consumers: what is to be reached", found)] if found else made


def _moves(results: GroupResults) -> rich.table.Table:
    made = table(
        f"From 1 to {MEMBERS} members, {SHARDS} shards; medians (and the most)",
        ["group", "rounds", "moves", "least moves", "balanced after ms", "times"],
    )
    for name, moved in results.moved.items():
        made.add_row(
            name,
            _median_and_most([each.rounds for each in moved.joins]),
            _median_and_most([each.moves for each in moved.joins]),
            str(MOVES),
            _median_and_most([each.balanced_ms for each in moved.joins]),
            str(len(moved.joins)),
        )
    return made


def _times(results: GroupResults) -> rich.table.Table:
    headings = ["group", "what, in ms", "p50", "p99", "most", "samples"]
    made = table("How long a shard is not read", headings, left=2)
    for name, moved in results.moved.items():
        named = name
        for what, taken in (
            ("from a steal's commit to the thief's first process()", moved.hand_overs_ms),
            ("from the last process() to the next member's first", moved.idle_ms),
            ("after kill -9, until all its shards are read again", moved.failovers_ms),
        ):
            if taken:
                figures = (statistics.median(taken), _p99(taken), max(taken))
                made.add_row(named, what, *(f"{each:,.0f}" for each in figures), str(len(taken)))
                named = ""
    return made


def _rates(results: GroupResults) -> rich.table.Table:
    headings = ["case", "system", "records/s", "MB/s", "servers µs", "client µs", "ours / it"]
    made = table("One member; CPU per record, of all servers together", headings, left=2)
    for shards in rates.SHARDS:
        named = rates.case(shards)
        ours = results.loads.get(rates.OURS, {}).get(named)
        for system, rows in results.loads.items():
            row = rows.get(rates.case(shards))
            if row is not None:
                ratio = ours.appends_per_second / row.appends_per_second if ours else 0.0
                made.add_row(
                    named,
                    system,
                    f"{row.appends_per_second:,.0f}",
                    f"{row.megabytes_per_second:,.1f}",
                    f"{row.servers_cpu_us:.2f}",
                    f"{row.client_cpu_us:.2f}",
                    "" if system == rates.OURS or not ours else f"{ratio:.2f}×",
                )
                named = ""
    return made


def _median_and_most(taken: Sequence[float]) -> str:
    return f"{statistics.median(taken):,.0f} ({max(taken):,.0f})" if taken else ""


def _p99(taken: Sequence[float]) -> float:
    ordered = sorted(taken)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
