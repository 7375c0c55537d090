"""`raftwood demo logservice`: the log service under fire, told step by step, and a report."""

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
from raftwood.logservice.hakeeper.commands import ClusterView
from raftwood.server.event_loop import run
from raftwood_demos import logservice as scenario
from raftwood_demos.log_load import RECORD_BYTES, LogLoad
from raftwood_demos.logservice import LogServiceOutcome, LogServicePlan, name_of
from raftwood_demos.story import StoryStep


def logservice(
    *,
    seconds: Annotated[float, Parameter(help="How long each part lasts at the least.")] = 10.0,
    shards: Annotated[int, Parameter(help="How many logs there are.")] = 4,
    records: Annotated[
        int, Parameter(help="How many records are appended before stores are killed.")
    ] = 200_000,
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text",
) -> int:
    """Append to replicated logs while stores are lost, repaired and killed; no record is lost."""
    if not 0.1 <= seconds <= 3600 or not 1 <= shards <= 64 or not 1000 <= records <= 10_000_000:
        raise InvalidInput(
            f"--seconds {seconds} --shards {shards} --records {records}: give 0.1 to 3600 seconds, "
            "1 to 64 shards, 1,000 to 10,000,000 records"
        )
    plan = LogServicePlan(shards=shards, records=records, seconds=seconds)
    # Told to end, it cleans up as if it was interrupted at the terminal.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with tempfile.TemporaryDirectory(prefix="raftwood-demo-", ignore_cleanup_errors=True) as folder:
        outcome = _run(folder, plan, Console(stderr=output == "json", highlight=False))
    if output == "json":
        write_line(msgspec.json.format(msgspec.json.encode(outcome), indent=2).decode())
    else:
        _write_report(outcome)
    return 0 if outcome.held else 1


def _run(folder: str, plan: LogServicePlan, console: Console) -> LogServiceOutcome:
    settings = " ".join(f"{name}={value}" for name, value in plan.settings().items())
    console.print(
        f"The log service under fire: three stores as processes in {folder};\n"
        f"{plan.shards * scenario.CLIENTS_PER_SHARD} clients append records of {RECORD_BYTES} "
        f"bytes to {plan.shards} shards while stores are killed and others take over.\n"
        f"Settings that are faster than the defaults, so that it does not take minutes:\n"
        f"  {settings}\n",
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


def _listener(progress: Progress, task: TaskID) -> scenario.Listener:
    console = progress.console

    def show_step(step: StoryStep) -> None:
        console.print(
            f"{step.at_s:6.1f} s  {step.acked:>9,} acked  {step.text}", markup=False, soft_wrap=True
        )

    def show_progress(part: str, done: int, total: int) -> None:
        count = f"{done:,} of {total:,}  " if total else ""
        progress.update(task, description=part, completed=done, total=total or None, count=count)

    def show_load(load: LogLoad) -> None:
        rates = load.rates()
        text = f"{rates.records_per_second:,.0f} records/s, p50 {rates.batch_p50_ms:.1f} ms"
        progress.update(task, load=text)

    return scenario.Listener(
        on_step=show_step,
        on_progress=show_progress,
        on_load=show_load,
        on_view=lambda view: console.print(_view_table(view)),
    )


def _view_table(view: ClusterView) -> Table:
    live = {store.store for store in view.stores if store.is_live}
    table = Table(title="What HAKeeper sees", title_justify="left")
    table.add_column("")
    for heading in ("leader", "voters", "learners", "term", "epoch"):
        table.add_column(heading, justify="right")
    for shard in view.shards:
        voters = (str(store) if store in live else f"({store})" for store in shard.voters)
        table.add_row(
            name_of(shard),
            str(shard.leader or "-"),
            " ".join(voters),
            " ".join(map(str, shard.learners)) or "-",
            str(shard.term),
            str(shard.epoch),
        )
    return table


def _write_report(outcome: LogServiceOutcome) -> None:
    console = Console()
    console.print(_truncation_table(outcome))
    console.print(_figures_table(outcome))
    verdict = outcome.verdict
    write_line(
        f"HELD: every one of {outcome.records_acked:,} acked records was read back, once, in order"
        if outcome.held
        else f"BROKEN: {verdict.missing} acked records are missing, {verdict.twice} are there "
        f"twice, {verdict.disordered} are out of order, {verdict.wrong} are none that was "
        f"written; exit statuses of the stores: {outcome.exit_statuses}"
    )


def _truncation_table(outcome: LogServiceOutcome) -> Table:
    table = Table(title="Truncation, in LSNs and bytes", title_justify="left")
    for heading in ("shard", "truncated up to", "first readable", "before", "after", "freed"):
        table.add_column(heading, justify="right")
    for each in outcome.truncations:
        table.add_row(
            str(each.shard),
            f"{each.truncated_lsn:,}",
            f"{each.first_lsn:,}",
            f"{each.bytes_before:,}",
            f"{each.bytes_after:,}",
            f"{each.bytes_before - each.bytes_after:,}",
        )
    return table


def _figures_table(outcome: LogServiceOutcome) -> Table:
    fast, verdict = outcome.full_speed, outcome.verdict
    table = Table(show_header=False, title="What came of it", title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    for name, figure in (
        ("first process started → all shards lead", f"{outcome.bootstrap_ms:,.0f} ms"),
        ("records acked a second, at full speed", f"{fast.records_per_second:,.0f}"),
        ("the same in bytes", f"{fast.megabytes_per_second:,.1f} MB/s"),
        ("batch acked, p50 and p99", f"{fast.batch_p50_ms:.1f} ms, {fast.batch_p99_ms:.1f} ms"),
        ("store killed → every shard acks again", f"{outcome.loss_pause_ms:,.0f} ms"),
        ("store killed → taken for lost", f"{outcome.detection_ms:,.0f} ms"),
        ("another store joins → all shards repaired", f"{outcome.repair_ms:,.0f} ms"),
        (
            "leader killed → next ack, at most",
            f"{max(outcome.failover_ms.values(), default=0.0):,.0f} ms",
        ),
        ("killed store restarted → caught up", f"{outcome.catch_up_ms:,.0f} ms"),
        ("longest time without an ack of a shard", f"{outcome.longest_pause_ms:,.0f} ms"),
        ("records acked, with unknown outcome", _pair(outcome)),
        ("acked records read back", f"{verdict.acked_found:,}"),
        (
            "missing, twice, out of order, wrong",
            f"{verdict.missing}, {verdict.twice}, {verdict.disordered}, {verdict.wrong}",
        ),
    ):
        table.add_row(name, figure)
    return table


def _pair(outcome: LogServiceOutcome) -> str:
    return f"{outcome.records_acked:,}, {outcome.records_unknown:,}"
