"""`raftwood demo cluster`: a cluster under fire, told step by step, and a report."""

import os
import tempfile
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from raftwood.base.errors import InvalidInput
from raftwood.cli.output import Format, write_line
from raftwood.server.event_loop import run
from raftwood_demos import cluster as scenario
from raftwood_demos.story import StoryStep


def cluster(
    *,
    seconds: Annotated[float, Parameter(help="How long each part lasts at the least.")] = 2.5,
    writers: Annotated[int, Parameter(help="How many clients write at a time.")] = 32,
    data: Annotated[
        str | None, Parameter(help="Folder to use and keep; else a temporary one.")
    ] = None,
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text",
) -> int:
    """Kill the leader of three stores, add and remove stores under load; nothing acked is lost."""
    if not 0.1 <= seconds <= 3600 or not 1 <= writers <= 1000:
        raise InvalidInput(
            f"--seconds {seconds} --writers {writers}: give 0.1 to 3600 seconds, 1 to 1000 writers"
        )
    if data is None:
        with tempfile.TemporaryDirectory(prefix="raftwood-demo-") as folder:
            return _run(folder, seconds, writers, output)
    if os.path.exists(data) and os.listdir(data):
        raise InvalidInput(f"--data {data}: there is something already; name a new folder")
    return _run(os.path.abspath(data), seconds, writers, output)


def _run(folder: str, seconds: float, writers: int, output: Format) -> int:
    console = Console(stderr=output == "json", highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"A cluster under fire: three stores as processes in {folder};\n"
        f"{writers} clients write and read all the time while stores are killed, added, removed.\n"
    )

    def show(step: StoryStep) -> None:
        console.print(f"{step.at_s:6.1f} s  {step.acked:>9,} acked  {step.text}")

    with console.status("three stores start …") as status:
        outcome = run(
            scenario.run(
                folder,
                seconds=seconds,
                writers=writers,
                on_step=show,
                on_progress=lambda acked: status.update(f"{acked:,} writes acked"),
            )
        )
    if output == "json":
        write_line(msgspec.json.format(msgspec.json.encode(outcome), indent=2).decode())
    else:
        _write_report(outcome)
    return 0 if outcome.held else 1


def _write_report(outcome: scenario.ClusterOutcome) -> None:
    verdict = outcome.verdict
    table = Table(show_header=False, title="What came of it", title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    for name, figure in (
        ("writes acked", f"{outcome.writes_acked:,}"),
        ("writes acked a second, faults included", f"{outcome.writes_per_second:,.0f}"),
        ("writes with an unknown outcome", f"{outcome.writes_unknown:,}"),
        ("leader killed → next write acked", f"{outcome.failover_ms:,.0f} ms"),
        ("leader hands over and is removed: longest pause", f"{outcome.hand_over_ms:,.0f} ms"),
        ("killed store restarted → caught up", f"{outcome.catch_up_ms:,.0f} ms"),
        ("longest time without an ack", f"{outcome.longest_pause_ms:,.0f} ms"),
        ("reads through the leader, of them stale", f"{outcome.reads:,}, {outcome.reads_stale}"),
        ("keys read back at the end", f"{verdict.keys_found:,}"),
        ("missing, wrong, written twice", f"{verdict.missing}, {verdict.wrong}, {verdict.twice}"),
    ):
        table.add_row(name, figure)
    Console().print(table)
    write_line(
        "HELD: every acked write is there, once"
        if outcome.held
        else f"BROKEN: {verdict.missing} acked writes are missing, {verdict.wrong} are wrong, "
        f"{verdict.twice} were carried out twice, {outcome.reads_stale} reads were stale; exit "
        f"statuses of the stores: {outcome.exit_statuses}"
    )
