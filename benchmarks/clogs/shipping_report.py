"""What `raftwood ship` and its peers reached, as tables, and what is to be reached."""

from typing import Final

import rich.table

from benchmarks.clogs.shipping import COUNTED, OURS, PEERS, Results
from benchmarks.harness.report import Verdict, goals_table, table

RATE_FACTOR: Final = 1.0
CPU_FACTOR: Final = 1.0


def verdicts(results: Results) -> list[Verdict]:
    """The goals that this run says something about: ours beside each peer, with the same sink."""
    medians = results.medians()
    mine = medians.get(COUNTED)
    found = []
    for peer in PEERS:
        its = medians.get(peer)
        if mine is None or its is None:
            continue
        found += [
            Verdict(
                what=f"MB/s against {peer}",
                measured=mine.megabytes_per_second / its.megabytes_per_second,
                goal=RATE_FACTOR,
                unit="×",
                is_least=True,
            ),
            Verdict(
                what=f"CPU per GB against {peer}",
                measured=mine.cpu_s_per_gb / its.cpu_s_per_gb,
                goal=CPU_FACTOR,
                unit="×",
                is_least=False,
            ),
        ]
    return found


def tables(results: Results) -> list[rich.table.Table]:
    made = [_figures(results)]
    if any(name in results.rounds for name in PEERS):
        made.append(_ratios(results))
    if found := verdicts(results):
        made.append(goals_table("`raftwood ship`: what is to be reached", found))
    return made


def _figures(results: Results) -> rich.table.Table:
    headings = ["system", "seconds", "MB/s", "lines/s", "CPU s/GB", "sink's CPU s/GB"]
    headings += ["memory MB", "bytes sent"]
    size = f"{results.bytes / 1e9:.2f} GB, {results.lines:,} lines"
    made = table(f"One file of {size} shipped; medians", headings)
    for name, row in results.medians().items():
        made.add_row(
            name,
            f"{row.seconds:.1f}",
            f"{row.megabytes_per_second:,.0f}",
            f"{row.lines_per_second:,.0f}",
            f"{row.cpu_s_per_gb:.1f}",
            f"{row.sink_cpu_s_per_gb:.1f}",
            f"{row.memory_mb:,.0f}",
            f"{row.wire_share:.0%}" if row.wire_share else "",
        )
    return made


def _ratios(results: Results) -> rich.table.Table:
    medians = results.medians()
    peers = [peer for peer in PEERS if peer in medians]
    headings = [f"{what} / {peer}'s" for what in ("MB/s", "CPU per GB") for peer in peers]
    made = table("Ours as multiples of theirs", ["system", *headings])
    for name in OURS:
        if (mine := medians.get(name)) is None:
            continue
        rates = [mine.megabytes_per_second / medians[peer].megabytes_per_second for peer in peers]
        costs = [mine.cpu_s_per_gb / medians[peer].cpu_s_per_gb for peer in peers]
        made.add_row(name, *(f"{each:.2f}×" for each in rates + costs))
    return made


def notes(results: Results) -> list[str]:
    """What the figures were measured on."""
    lines = [f"- {name}: {about}" for name, about in results.systems.items()]
    lines += [f"- {name}: not available: {reason}" for name, reason in results.missing.items()]
    lines += [f"- failed: {problem}" for problem in results.failed]
    if results.loads:
        least, most = min(results.loads), max(results.loads)
        lines.append(
            "- shipper and sink share the machine's cores, on loopback without TLS; the file is in "
            f"the page cache, state and data on {results.disk}; the machine's load before each "
            f"measurement was {least:.1f} to {most:.1f}"
        )
    return lines
