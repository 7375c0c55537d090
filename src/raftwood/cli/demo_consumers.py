"""`raftwood demo consumers`: shards move between processes, told step by step, and a report."""

import importlib.util
import signal
import tempfile
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from raftwood.base.errors import InvalidConfiguration, InvalidInput
from raftwood.cli.output import Format, write_line
from raftwood_demos import consumers as scenario
from raftwood_demos.consumers import ConsumersOutcome, ConsumersPlan
from raftwood_demos.story import shown_on


def consumers(
    *,
    shards: Annotated[int, Parameter(help="How many shards the stream begins with.")] = 8,
    records: Annotated[int, Parameter(help="How many records come in a second.")] = 2_000,
    timeout: Annotated[float, Parameter(help="Seconds after which a lease expires.")] = 2.0,
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text",
) -> int:
    """Three processes share a stream; one joins, one is killed with -9, a shard is split.

    Every record must be processed once, or again where the one that was killed had not stored a
    checkpoint behind it.
    """
    if not (4 <= shards <= 64 and 10 <= records <= 20_000 and 1 <= timeout <= 60):
        raise InvalidInput(
            f"--shards {shards} --records {records} --timeout {timeout}: give 4 to 64 shards, 10 "
            "to 20,000 records and 1 to 60 seconds"
        )
    # Leases are kept in SQLite.
    check_installed("sqlalchemy", "aiosqlite", extra="sql")
    plan = ConsumersPlan(shards=shards, records_per_s=records, timeout_s=timeout)
    # Told to end, it cleans up as if it was interrupted at the terminal.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    console = Console(stderr=output == "json", highlight=False)
    with tempfile.TemporaryDirectory(prefix="raftwood-demo-", ignore_cleanup_errors=True) as folder:
        console.print(
            f"Consumers by leases: {records:,} records a second go into a stream of {shards} "
            f"shards, and processes share them; all of it in {folder}.\n",
            markup=False,
            soft_wrap=True,
        )
        with shown_on(console) as listener:
            outcome = scenario.run(folder, plan, listener)
    if output == "json":
        write_line(msgspec.json.format(msgspec.json.encode(outcome), indent=2).decode())
    else:
        _write_report(outcome)
    return 0 if outcome.held else 1


def check_installed(*libraries: str, extra: str) -> None:
    """Tells what is missing before anything is started."""
    for name in libraries:
        if importlib.util.find_spec(name) is None:
            raise InvalidConfiguration(f"{name} is not installed: pip install 'raftwood[{extra}]'")


def change_table(outcome: ConsumersOutcome) -> Table:
    table = Table(title=f"Leases of {outcome.timeout_s:g} s", title_justify="left")
    table.add_column("what happened")
    for heading in ("shards moved", "longest pause", "even after"):
        table.add_column(heading, justify="right")
    for each in outcome.changes:
        table.add_row(
            each.what, str(each.moves), f"{each.idle_ms:,.0f} ms", f"{each.balanced_s:.1f} s"
        )
    return table


def _shard_table(outcome: ConsumersOutcome) -> Table:
    table = Table(title="Who had which shard", title_justify="left")
    for heading in ("shard", "follows", "consumers", "records"):
        table.add_column(heading, justify="left" if heading == "consumers" else "right")
    for each in outcome.shards:
        table.add_row(
            each.shard,
            " ".join(each.parents) or "-",
            " → ".join(each.consumers),
            f"{each.records:,}",
        )
    return table


def _write_report(outcome: ConsumersOutcome) -> None:
    console = Console(highlight=False)
    console.print(change_table(outcome))
    console.print(_shard_table(outcome))
    verdict = outcome.verdict
    write_line(
        f"HELD: each of {verdict.sent:,} records was processed; {verdict.again:,} came again, all "
        "of them behind the last stored checkpoint of the one that was killed"
        if outcome.held
        else f"BROKEN: {verdict.missing} records are missing, {verdict.repeated} came again for no "
        f"reason, {verdict.overlaps} times two were at one shard, {verdict.early} shards were "
        "begun before their parents were done"
    )
