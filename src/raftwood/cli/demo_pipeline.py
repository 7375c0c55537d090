"""`raftwood demo pipeline`: web servers' lines become figures, told step by step, and a report."""

import os
import signal
import tempfile
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from raftwood.base.errors import InvalidInput
from raftwood.cli.demo_consumers import change_table, check_installed
from raftwood.cli.output import Format, size_text, write_line
from raftwood_demos import pipeline as scenario
from raftwood_demos.pipeline import PipelineOutcome, PipelinePlan
from raftwood_demos.png_chart import Series, bar_chart
from raftwood_demos.shipping import Shipped
from raftwood_demos.story import shown_on

PLOT: Final = "raftwood-pipeline.png"
_BLUE: Final = (66, 110, 180)
_RED: Final = (200, 72, 60)
_LONG: Final = 14
_SHORT: Final = 6
"""Letters of the bars: the table is to fit into 80."""


def pipeline(
    *,
    lines: Annotated[int, Parameter(help="How many lines go through the archive.")] = 200_000,
    later: Annotated[int, Parameter(help="How many lines come after it.")] = 20_000,
    plot: Annotated[str, Parameter(help="Where the picture goes, a PNG.")] = PLOT,
    data: Annotated[
        str | None, Parameter(help="Folder to use and keep, a new one; else a temporary one.")
    ] = None,
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text",
) -> int:
    """Ship web-server logs, parse and count them with Spark, archive and truncate; all must agree.

    Web servers, each a process, ship them to receivers, of which one is killed and comes back.
    Lines are parsed into a stream; errors and figures by the minute go to streams of their own, the
    figures also to keys of Zeppelin's, which a client of Redis reads back, and what was parsed to
    an archive of Parquet files, after which the log is truncated. Then
    processes share a stream by leases: one joins, one is killed, a shard is split.
    """
    if not (1_000 <= lines <= 50_000_000 and 100 <= later <= 50_000_000):
        raise InvalidInput(
            f"--lines {lines} --later {later}: give 1,000 and 100 to 50,000,000 of them"
        )
    check_installed("pyspark", "pandas", "redis", "sqlalchemy", "aiosqlite", extra="demo")
    if data is not None and os.path.exists(data) and os.listdir(data):
        raise InvalidInput(f"--data {data}: there is something in it already; give a new folder")
    # A short story has minutes as well.
    plan = PipelinePlan(
        lines=lines, later=later, lines_per_minute=max(1_000, min(12_000, lines // 15))
    )
    # Told to end, it cleans up as if it was interrupted at the terminal.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    console = Console(stderr=output == "json", highlight=False)
    if data is not None:
        outcome = _run(os.path.abspath(data), plan, console)
    else:
        with tempfile.TemporaryDirectory(
            prefix="raftwood-demo-", ignore_cleanup_errors=True
        ) as folder:
            outcome = _run(folder, plan, console)
    with open(plot, "wb") as file:
        file.write(_picture(outcome))
    if output == "json":
        write_line(msgspec.json.format(msgspec.json.encode(outcome), indent=2).decode())
    else:
        _write_report(outcome, os.path.abspath(plot))
    return 0 if outcome.held else 1


def _run(folder: str, plan: PipelinePlan, console: Console) -> PipelineOutcome:
    console.print(
        f"The pipeline: {plan.lines:,} lines of web servers go through Raftwood and Spark to an "
        f"archive, {plan.later:,} more stay in the log; all of it in {folder}.\n",
        markup=False,
        soft_wrap=True,
    )
    with shown_on(console) as listener:
        return scenario.run_pipeline(folder, plan, listener)


def _picture(outcome: PipelineOutcome) -> bytes:
    minutes = outcome.minutes
    return bar_chart(
        [each.minute[11:16] for each in minutes],
        [
            Series("requests a minute", [each.requests for each in minutes], _BLUE),
            Series("errors a minute", [each.errors for each in minutes], _RED),
        ],
    )


def _write_report(outcome: PipelineOutcome, plot: str) -> None:
    console = Console(highlight=False)
    console.print(_receiver_table(outcome.shipped))
    write_line(_killed_text(outcome.shipped))
    console.print(_job_table(outcome))
    console.print(_minute_table(outcome))
    console.print(change_table(outcome.consumers))
    console.print(_check_table(outcome))
    write_line(f"the same as a picture: {plot}")
    broken = [each.what for each in outcome.checks if not each.held]
    write_line(
        f"HELD: all {len(outcome.checks)} counts agree from end to end, in {outcome.seconds:.0f} s"
        if outcome.held
        else f"BROKEN: {'; '.join(broken)}"
    )


def _receiver_table(shipped: Shipped) -> Table:
    table = Table(title="Lines by receiver", title_justify="left")
    table.add_column("receiver")
    for heading in ("files", "sent", "sent again", "acked", "dropped"):
        table.add_column(heading, justify="right")
    for name, each in shipped.receivers.items():
        table.add_row(
            name,
            str(shipped.files.get(name, 0)),
            f"{each.sent:,}",
            f"{each.retried:,}",
            f"{each.acked:,}",
            f"{each.dropped:,}",
        )
    return table


def _killed_text(shipped: Shipped) -> str:
    killed = shipped.killed
    return (
        f"{killed.receiver} was killed: its {killed.files} files went on elsewhere after "
        f"{killed.elsewhere_ms:,.0f} ms at the longest, all others after {killed.others_ms:,.0f} "
        f"ms; {shipped.again:,} lines were sent again. It was back after {killed.away_s:.1f} s, "
        f"and took {killed.acked_again:,} more lines.\n"
    )


def _job_table(outcome: PipelineOutcome) -> Table:
    table = Table(title="Jobs", title_justify="left")
    for heading in ("job", "rows", "seconds", "rows/s"):
        table.add_column(heading, justify="left" if heading == "job" else "right")
    for each in outcome.runs:
        rate = each.rows / max(each.seconds, 0.001)
        table.add_row(each.job, f"{each.rows:,}", f"{each.seconds:.1f}", f"{rate:,.0f}")
    return table


def _minute_table(outcome: PipelineOutcome) -> Table:
    table = Table(title="Minute by minute", title_justify="left")
    table.add_column("minute")
    for title, width, color in (("requests", _LONG, "blue"), ("errors", _SHORT, "red")):
        table.add_column(title, justify="right")
        table.add_column("", min_width=width, style=color)
    table.add_column("sent", justify="right")
    table.add_column("95 % in", justify="right")
    requests = _bars([each.requests for each in outcome.minutes], _LONG)
    errors = _bars([each.errors for each in outcome.minutes], _SHORT)
    for each, all_bar, bad_bar in zip(outcome.minutes, requests, errors, strict=True):
        table.add_row(
            each.minute[11:16],
            f"{each.requests:,}",
            all_bar,
            f"{each.errors:,}",
            bad_bar,
            size_text(each.bytes),
            f"{each.p95_ms:.0f} ms",
        )
    return table


def _bars(values: Sequence[int], width: int) -> list[str]:
    """Each as long as its value says, in eighths of a letter; the highest as wide as is given."""
    highest = max(values, default=1) or 1
    eighths = [width * 8 * value // highest for value in values]
    return ["█" * (each // 8) + " ▏▎▍▌▋▊▉"[each % 8].strip() for each in eighths]


def _check_table(outcome: PipelineOutcome) -> Table:
    table = Table(title="Do the counts agree?", title_justify="left")
    table.add_column("from → to")
    table.add_column("expected", justify="right")
    table.add_column("found", justify="right")
    table.add_column("")
    for each in outcome.checks:
        verdict = "[green]yes[/]" if each.held else "[red]NO[/]"
        table.add_row(each.what, f"{each.expected:,}", f"{each.found:,}", verdict)
    return table
