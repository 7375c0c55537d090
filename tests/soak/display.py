"""Progress while seeds run, and the tallies beside the figures of a long run."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from tests.kits.fuzz import TARGETS
from tests.soak.tallies import Tallies

LONG_RUN: dict[str, float] = {
    "toy: simulated hours": 90,
    "toy: seeds run twice, hash equal": 500,
    "raft hosts: simulated hours": 100,
    "raft hosts: seeds run twice, hash equal": 300,
    "log stores: simulated hours": 20,
    "log stores: seeds run twice, hash equal": 200,
    "gateways: simulated hours": 20,
    "gateways: seeds run twice, hash equal": 200,
    "raft: sans-io events": 1_000_000_000,
    "hakeeper: sans-io events": 1_000_000_000,
    "consumer groups: sans-io events": 100_000_000,
    "ledgers: sans-io events": 1_000_000_000,
    "clogs: sans-io events of health": 1_000_000_000,
    "clogs: sans-io events of shipping": 1_000_000_000,
    "leases: runs": 100_000,
    "crash images: log": 100_000,
    "crash images: folder": 100_000,
    "crash images: snapshots": 100_000,
    **{f"fuzz inputs: {name}": 100_000_000 for name in TARGETS},
}


def progress_on(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def show(console: Console, tallies: Tallies) -> None:
    table = Table(title="Tallies of all runs so far")
    table.add_column("what")
    for name in ("so far", "long run", "share"):
        table.add_column(name, justify="right")
    for name in [*LONG_RUN, *(name for name in tallies.counts if name not in LONG_RUN)]:
        count, goal = tallies.counts.get(name, 0), LONG_RUN.get(name)
        share = f"{count / goal:.1%}" if goal else ""
        table.add_row(name, _number(count), _number(goal) if goal else "", share)
    table.add_row("failures", str(len(tallies.failures)), "0", "")
    console.print(table)
    for failure in tallies.failures:
        console.print(f"{failure.kind} seed {failure.seed}: {failure.error}", markup=False)
        console.print(f"  repeat: {failure.command}", markup=False, soft_wrap=True)


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"
