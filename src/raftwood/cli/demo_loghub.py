"""`raftwood demo loghub`: streams under fire, told step by step, and a report."""

import signal
import tempfile
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from raftwood.base.errors import InvalidInput
from raftwood.cli.output import Format, write_line
from raftwood.loghub.wire import ShardDetail
from raftwood.server.event_loop import run
from raftwood_demos import loghub as scenario
from raftwood_demos.loghub import StreamListener, StreamLoad, StreamOutcome, StreamPlan
from raftwood_demos.story import StoryStep


def loghub(
    *,
    seconds: Annotated[float, Parameter(help="How long each part lasts at the least.")] = 5.0,
    shards: Annotated[int, Parameter(help="How many shards the stream begins with.")] = 4,
    producers: Annotated[int, Parameter(help="How many producers send.")] = 4,
    records: Annotated[
        int, Parameter(help="How many records are sent before anything happens.")
    ] = 300_000,
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text",
) -> int:
    """Send records through gateways while shards are split and processes killed; none is lost."""
    is_sane = 0.1 <= seconds <= 3600 and 1 <= shards <= 64 and 1 <= producers <= 64
    if not is_sane or not 1000 <= records <= 10_000_000:
        raise InvalidInput(
            f"--seconds {seconds} --shards {shards} --producers {producers} --records {records}: "
            "give 0.1 to 3600 seconds, 1 to 64 shards and producers, 1,000 to 10,000,000 records"
        )
    plan = StreamPlan(shards=shards, producers=producers, records=records, seconds=seconds)
    # Told to end, it cleans up as if it was interrupted at the terminal.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with tempfile.TemporaryDirectory(prefix="raftwood-demo-", ignore_cleanup_errors=True) as folder:
        outcome = _run(folder, plan, Console(stderr=output == "json", highlight=False))
    if output == "json":
        write_line(msgspec.json.format(msgspec.json.encode(outcome), indent=2).decode())
    else:
        _write_report(outcome)
    return 0 if outcome.held else 1


def _run(folder: str, plan: StreamPlan, console: Console) -> StreamOutcome:
    console.print(
        f"Streams under fire: three stores and two gateways as processes in {folder};\n"
        f"{plan.producers} producers send records of 100 bytes with keys to {plan.shards} shards "
        "while shards are split and merged, and a gateway and a store are killed.\n",
        markup=False,
        soft_wrap=True,
    )
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(),
        TextColumn("{task.fields[count]}{task.fields[load]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None, count="", load="")
        return run(scenario.run(folder, plan, _listener(progress, task)))


def _listener(progress: Progress, task: TaskID) -> StreamListener:
    console = progress.console

    def show_step(step: StoryStep) -> None:
        console.print(
            f"{step.at_s:6.1f} s  {step.acked:>9,} acked  {step.text}", markup=False, soft_wrap=True
        )

    def show_progress(part: str, done: int, total: int) -> None:
        count = f"{done:,} of {total:,}  " if total else ""
        progress.update(task, description=part, completed=done, total=total or None, count=count)

    def show_load(load: StreamLoad) -> None:
        progress.update(task, load=f"{load.rates().records_per_second:,.0f} records/s")

    return StreamListener(
        on_step=show_step,
        on_progress=show_progress,
        on_load=show_load,
        on_shards=lambda shards: console.print(_shard_table(shards)),
    )


def _shard_table(shards: list[ShardDetail]) -> Table:
    table = Table(title="The stream's shards", title_justify="left")
    for heading in ("shard", "status", "keys from", "to", "follows", "positions", "bytes"):
        table.add_column(heading, justify="right")
    for each in shards:
        shard = each.shard
        table.add_row(
            str(shard.id),
            shard.status.value,
            f"{shard.begin[:8]}…",
            f"{shard.end[:8]}…",
            " ".join(map(str, shard.parents)) or "-",
            f"{each.first} to {each.next}",
            f"{each.appended_bytes:,}",
        )
    return table


def _write_report(outcome: StreamOutcome) -> None:
    Console().print(_shard_table(outcome.shards))
    Console().print(_figures_table(outcome))
    verdict = outcome.verdict
    write_line(
        f"HELD: every one of {outcome.records_acked:,} acked records was read back, once, in the "
        "order of its key"
        if outcome.held
        else f"BROKEN: {verdict.missing} acked records are missing, {verdict.twice} are there "
        f"twice, {verdict.disordered} are out of order, {verdict.wrong} are none that was sent; "
        f"exit statuses: {outcome.exit_statuses}"
    )


def _figures_table(outcome: StreamOutcome) -> Table:
    verdict = outcome.verdict
    table = Table(show_header=False, title="What came of it", title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    for name, figure in (
        ("first process started → stream can be written", f"{outcome.start_ms:,.0f} ms"),
        ("records acked a second, at full speed", _rate(outcome.full_speed.records_per_second)),
        ("records read back a second, one by one", _rate(outcome.read_records_per_second)),
        ("a shard is split, while it is written", f"{outcome.split_ms:,.0f} ms"),
        ("two shards are merged, while they are written", f"{outcome.merge_ms:,.0f} ms"),
        ("gateway killed → every shard acks", f"{outcome.gateway_killed_ms:,.0f} ms"),
        ("store killed → every shard acks", f"{outcome.store_killed_ms:,.0f} ms"),
        ("longest time without an ack", f"{outcome.longest_pause_ms:,.0f} ms"),
        (
            "records acked, with unknown outcome",
            f"{outcome.records_acked:,}, {outcome.records_unknown:,}",
        ),
        ("acked records read back", f"{verdict.acked_found:,}"),
        (
            "missing, twice, out of order, wrong",
            f"{verdict.missing}, {verdict.twice}, {verdict.disordered}, {verdict.wrong}",
        ),
    ):
        table.add_row(name, figure)
    return table


def _rate(records_per_second: float) -> str:
    return f"{records_per_second:,.0f}"
