"""What nodes that join and leave cost, as tables and as a plot in text."""

from typing import Final

import rich.table

from benchmarks.harness.report import Verdict, goals_table, table
from benchmarks.zeppelin.growth import SLOT_S, Growth, Phase

_BARS: Final = " ▁▂▃▄▅▆▇█"
_BYTES_GOAL: Final = 1.5
"""Of the keys and values that have to move: an engine's files hold old values of keys as well."""


def moved_ratio(results: Growth, phase: Phase) -> float:
    """Bytes of copies, as a multiple of the keys and values that had to move at least."""
    return phase.copied_bytes / (phase.moves_min * results.partition_bytes)


def verdicts(results: Growth) -> list[Verdict]:
    found = []
    for phase in results.phases:
        if phase.moves:
            uneven = max(phase.masters) - min(each for each in phase.masters if each)
            for what, measured, goal, unit in (
                ("moves beside the fewest", phase.moves / phase.moves_min, 1.0, "×"),
                ("bytes copied beside the fewest", moved_ratio(results, phase), _BYTES_GOAL, "×"),
                ("masters of two nodes differ by", float(uneven), 1.0, ""),
            ):
                found.append(
                    Verdict(
                        what=f"{phase.name}: {what}",
                        measured=measured,
                        goal=goal,
                        unit=unit,
                        is_least=False,
                    )
                )
    failed = sum(results.said.errors.values()), len(results.said.lost)
    for what, count in zip(("requests that failed", "acked writes lost"), failed, strict=True):
        found.append(Verdict(what=what, measured=float(count), goal=0.0, unit="", is_least=False))
    return found


def tables(results: Growth) -> list[rich.table.Table]:
    return [
        _phases(results),
        _moves(results),
        _plot(results),
        goals_table("Zeppelin grows and shrinks: what is to be reached", verdicts(results)),
    ]


def _phases(results: Growth) -> rich.table.Table:
    headings = ["phase", "s", "requests/s", "of the first", "least in 0.5 s", "p50 ms", "p99 ms"]
    made = table("Zeppelin grows and shrinks: what clients see", [*headings, "longest ms"])
    first = results.phases[0]
    for phase in results.phases:
        made.add_row(
            phase.name,
            f"{phase.seconds:.1f}",
            f"{phase.rate:,.0f}",
            f"{phase.rate / first.rate:.2f}×",
            f"{min(phase.slots, default=0):,.0f}",
            f"{phase.p50_ms:.1f}",
            f"{phase.p99_ms:.1f}",
            f"{phase.longest_ms:.0f}",
        )
    return made


def _moves(results: Growth) -> rich.table.Table:
    headings = ["phase", "moves", "fewest", "MB copied", "MB to copy", "copied / to copy"]
    headings += ["MB of records", "requests that waited", "masters", "replicas"]
    made = table("What moved for that; each node's masters and replicas at the end", headings)
    for phase in results.phases:
        if phase.moves:
            made.add_row(
                phase.name,
                str(phase.moves),
                str(phase.moves_min),
                f"{phase.copied_bytes / 1e6:.1f}",
                f"{phase.moves_min * results.partition_bytes / 1e6:.1f}",
                f"{moved_ratio(results, phase):.2f}×",
                f"{phase.streamed_bytes / 1e6:.1f}",
                str(phase.parked),
                " ".join(map(str, phase.masters)),
                " ".join(map(str, phase.replicas)),
            )
    return made


def _plot(results: Growth) -> rich.table.Table:
    """A bar for each half of a second."""
    most = max(rate for phase in results.phases for rate in phase.slots)
    title = f"Requests per second over time: a bar is {SLOT_S} s, █ is {most:,.0f}"
    made = table(title, ["phase", ""], left=2)
    for phase in results.phases:
        bars = (_BARS[round(rate / most * (len(_BARS) - 1))] for rate in phase.slots)
        made.add_row(phase.name, "".join(bars))
    return made


def notes(results: Growth) -> list[str]:
    pace, said = results.pace, results.said
    table_of = (
        f"- {pace.partitions} partitions with {pace.replicas} replicas, ack = written; "
        f"{pace.keys:,} keys of {pace.value_bytes} bytes that cannot be compressed, binlogs cut "
        "back to 256 kB, so that replicas move as copies"
    )
    load = (
        f"- the load is `AsyncKv` with {pace.workers} requests under way, half reads, half writes: "
        f"{said.calls:,} requests, of which {sum(said.errors.values())} failed; of "
        f"{said.written:,} keys that were written {len(said.lost)} were lost"
    )
    machine = (
        f"- {pace.nodes + pace.joining} nodes, {pace.stores} stores and the load share the "
        "machine's cores, so more nodes serve no more here, and whatever copies takes from what "
        f"serves; data on {results.disk}"
    )
    return [table_of, load, machine]
