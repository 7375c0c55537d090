"""What was measured, as tables, and how far it is from what is to be reached."""

from typing import Final

import rich.table

from benchmarks.harness.comparison import Results
from benchmarks.harness.report import Verdict, goals_table, statements, table
from benchmarks.zeppelin.cases import (
    ALWAYS,
    CASES,
    CONNECTIONS,
    DURABLE,
    ETCD,
    KEYS,
    ONE,
    OURS,
    OURS_CLUSTER,
    REDIS,
    REDIS_CLUSTER,
    TWO,
    VALUE_BYTES,
    WRITES,
    Case,
)

Goal = tuple[Case, str, str, float]
"""A case, the system, the one that it is a multiple of, and that."""

AGAINST_REDIS: Final[tuple[Goal, ...]] = (
    (Case("GET", 50, 1), OURS, REDIS, 0.5),
    (Case("GET", 50, 16), OURS, REDIS, 0.3),
    (Case("SET", 50, 1), OURS, REDIS, 0.6),
    (Case("SET", 50, 16), OURS, REDIS, 0.4),
    (Case("MGET", 50, 1), OURS, REDIS, 0.4),
    (Case("MSET", 50, 1), OURS, REDIS, 0.4),
    (Case("SET", 50, 1), DURABLE, ALWAYS, 0.4),
    (Case("SET", 50, 16), DURABLE, ALWAYS, 0.4),
    (Case("MSET", 50, 1), DURABLE, ALWAYS, 0.4),
)
# etcd syncs what it acks: writes are compared with those that we sync, on two nodes even.
AGAINST_ETCD: Final[tuple[Goal, ...]] = tuple(
    (Case(operation, connections, 1), DURABLE if operation in WRITES else OURS, ETCD, 5.0)
    for operation in ("GET", "SET", "MGET", "MSET")
    for connections in CONNECTIONS
)
TWO_AGAINST_ONE: Final[tuple[Goal, ...]] = (
    (Case("GET", 50, 16), TWO, ONE, 1.6),
    (Case("SET", 50, 16), TWO, ONE, 1.6),
)
GOALS: Final = AGAINST_REDIS + AGAINST_ETCD + TWO_AGAINST_ONE


def verdicts(results: Results) -> list[Verdict]:
    """The goals that this run says something about."""
    found = []
    for case, name, peer, factor in GOALS:
        mine = results.loads.get(name, {}).get(case.name)
        its = results.loads.get(peer, {}).get(case.name)
        if mine is not None and its is not None:
            found.append(
                Verdict(
                    what=f"{case.name}: {name} against {peer}",
                    measured=mine.appends_per_second / its.appends_per_second,
                    goal=factor,
                    unit="×",
                    is_least=True,
                )
            )
    return found


def notes(results: Results) -> list[str]:
    """What the figures were measured on."""
    *lines, _ = statements(results)
    about = (
        f"- keys are drawn from {KEYS:,}, values have {VALUE_BYTES} bytes; redis-benchmark and all "
        "servers share the machine's cores; nobody uses TLS; Zeppelin's clients log in, Redis's "
        f"don't; data on {results.disk}"
    )
    return [*lines, about]


TABLES: Final = (
    ("One process beside one process", (OURS, REDIS, ETCD)),
    ("Writes on the disk before they are acked", (DURABLE, ALWAYS)),
    ("One node and two, each loaded by two redis-benchmark", (TWO, ONE)),
    ("Clusters, one thread of redis-benchmark", (OURS_CLUSTER, REDIS_CLUSTER)),
)


def tables(results: Results) -> list[rich.table.Table]:
    shown = [
        _loads(f"{title}; CPU per request", results, names)
        for title, names in TABLES
        if any(name in results.loads for name in names)
    ]
    found = verdicts(results)
    return [*shown, goals_table("Zeppelin: what is to be reached", found)] if found else shown


def _loads(title: str, results: Results, names: tuple[str, ...]) -> rich.table.Table:
    """The first one's figures, and how they compare with the others'."""
    headings = ["request, connections × pipeline", "system", "requests/s", "p50 ms", "p99 ms"]
    made = table(title, [*headings, "servers µs", "load µs", f"{names[0]} / it"], left=2)
    for case in CASES:
        mine = results.loads.get(names[0], {}).get(case.name)
        shown = case.name
        for name in names:
            row = results.loads.get(name, {}).get(case.name)
            if row is None:
                continue
            ratio = mine.appends_per_second / row.appends_per_second if mine else 0.0
            made.add_row(
                shown,
                name,
                f"{row.appends_per_second:,.0f}",
                f"{row.p50_ms:.2f}",
                f"{row.p99_ms:.2f}",
                f"{row.leader_cpu_us:.1f}",
                f"{row.client_cpu_us:.1f}",
                f"{ratio:.2f}×" if mine and name != names[0] else "",
            )
            shown = ""
    return made
