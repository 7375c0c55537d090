"""`raftwood demo`: see a promise kept on this machine, with progress and a report."""

import os
import sys
import tempfile
from typing import Annotated

import msgspec
from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from raftwood.base.errors import InvalidInput
from raftwood.cli.demo_cluster import cluster
from raftwood.cli.demo_consumers import consumers
from raftwood.cli.demo_loghub import loghub
from raftwood.cli.demo_logservice import logservice
from raftwood.cli.demo_pipeline import pipeline
from raftwood.cli.options import SERVER_DEFAULTS, ServerSource
from raftwood.cli.output import Format, write_line
from raftwood.server.event_loop import run
from raftwood_demos import durable_log as scenario

app = App(name="demo", help_format="plaintext")
app.command(cluster)
app.command(logservice)
app.command(loghub)
app.command(consumers)
app.command(pipeline)


@app.command
def durable_log(
    *,
    kills: Annotated[int, Parameter(help="How often the writer is killed.")] = 10,
    seconds: Annotated[float, Parameter(help="How long a life lasts, on average.")] = 1.5,
    data: Annotated[
        str | None, Parameter(help="Data folder to use and keep; else a temporary one.")
    ] = None,
    source: ServerSource = SERVER_DEFAULTS,
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text",
) -> int:
    """Kill a writer with -9 again and again; every record that it acked must still be there."""
    if kills < 1 or not 0.05 <= seconds <= 3600:
        raise InvalidInput(
            f"--kills {kills} --seconds {seconds}: give at least one kill, and 0.05 to 3600 seconds"
        )
    if data is not None:
        return _run(os.path.abspath(data), kills, seconds, source, output)
    with tempfile.TemporaryDirectory(prefix="raftwood-demo-") as folder:
        return _run(f"{folder}/store", kills, seconds, source, output)


def _run(path: str, kills: int, seconds: float, source: ServerSource, output: Format) -> int:
    source.load()  # a mistake in it is told before anything is started
    console = Console(stderr=True)
    if output == "text":
        write_line("A durable log under fire: a writer appends batches to a store in")
        write_line(f"{path}")
        write_line(f"is killed with -9 {kills} times, and starts again on what is left.\n")
        sys.stdout.flush()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} kills"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=kills)

        def show(life: scenario.Life) -> None:
            progress.update(
                task,
                advance=1,
                description=f"{life.records_per_second:,.0f} records/s acked, "
                f"{life.records_missing} missing",
            )

        outcome = run(
            scenario.run(
                path,
                kills=kills,
                seconds=seconds,
                on_life=show,
                config=source.config,
                assignments=source.assignments,
            )
        )
    if output == "json":
        write_line(msgspec.json.format(msgspec.json.encode(outcome), indent=2).decode())
    else:
        _write_report(outcome)
    return 0 if outcome.held else 1


def _write_report(outcome: scenario.DurableLogOutcome) -> None:
    table = Table(title="Lives of the writer", title_justify="left")
    for heading in (
        "life",
        "seconds",
        "recovery ms",
        "found",
        "acked",
        "records/s",
        "MB/s",
        "lost",
    ):
        table.add_column(heading, justify="right")
    for life in outcome.lives:
        table.add_row(
            str(life.number),
            f"{life.seconds:.2f}",
            f"{life.recovery_ms:.0f}",
            f"{life.records_found:,}",
            f"{life.records_acked:,}",
            f"{life.records_per_second / 1000:,.0f} k",
            f"{life.megabytes_per_second:.0f}",
            str(life.records_missing),
        )
    Console().print(table)
    write_line(
        f"acked {outcome.records_acked:,} records in {len(outcome.lives)} lives; "
        f"{outcome.records_verified:,} are kept and were read back byte for byte (older ones were "
        f"truncated on purpose); {outcome.records_missing} are missing"
    )
    write_line("HELD: nothing acked was lost" if outcome.held else "BROKEN: acked records are gone")
