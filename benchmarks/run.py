"""All comparisons, one after the other: what `make bench` does.

    python -m benchmarks.run [--parts raft] [--quick] [--write]

The figures of each part go to benchmarks/results/ as JSON; `--write` puts the tables
into benchmarks/README.md, each part in its place.
"""

import argparse
import datetime
import io
import os
import pathlib
import platform
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import rich.console
import rich.status
import rich.table

from benchmarks import group_commit, rpc_echo
from benchmarks.clogs import handler as clogs_handler
from benchmarks.clogs import ring as clogs_ring
from benchmarks.clogs import shipping as clogs_shipping
from benchmarks.clogs import shipping_report as clogs_shipping_report
from benchmarks.consumers import compare as consumers
from benchmarks.consumers import report as consumers_report
from benchmarks.harness.report import Verdict, statements
from benchmarks.ledgers import compare as ledgers
from benchmarks.ledgers import report as ledgers_report
from benchmarks.loghub import compare as loghub
from benchmarks.loghub import report as loghub_report
from benchmarks.logservice import compare as logservice
from benchmarks.logservice import report as logservice_report
from benchmarks.pipeline import compare as pipeline
from benchmarks.pipeline import report as pipeline_report
from benchmarks.raft_cluster import compare as raft
from benchmarks.raft_cluster import report as raft_report
from benchmarks.zeppelin import compare as zeppelin
from benchmarks.zeppelin import growth as zeppelin_growth
from benchmarks.zeppelin import growth_report as zeppelin_growth_report
from benchmarks.zeppelin import report as zeppelin_report

README = pathlib.Path(__file__).with_name("README.md")
RESULTS = pathlib.Path(__file__).with_name("results")
WIDTH = 140


class Outcome(msgspec.Struct):
    """What a part has to show."""

    figures: Any
    tables: list[rich.table.Table]
    below: list[str]
    """Goals that were missed."""
    notes: list[str] = []


def _rounds(benchmark: Any, quick: bool) -> Outcome:
    seconds, rounds = (0.3, 1) if quick else (1.5, 5)
    results = benchmark.compare(seconds, rounds)
    below = [
        f"{result['case']}: {result['ratio']:.2f}× of {result['goal']}×"
        for result in results
        if result["goal"] and result["ratio"] < result["goal"]
    ]
    return Outcome(results, [benchmark.table(results)], below)


def _raft(quick: bool, progress: Callable[[str], None]) -> Outcome:
    results = raft.compare(pace=raft.QUICK if quick else None, progress=progress)
    below = _below(raft_report.verdicts(results))
    return Outcome(results, raft_report.tables(results), below, statements(results))


def _logservice(quick: bool, progress: Callable[[str], None]) -> Outcome:
    results = logservice.compare(pace=logservice.QUICK if quick else None, progress=progress)
    below = _below(logservice_report.verdicts(results))
    return Outcome(results, logservice_report.tables(results), below, statements(results))


def _loghub(quick: bool, progress: Callable[[str], None]) -> Outcome:
    results = loghub.compare(pace=loghub.QUICK if quick else None, progress=progress)
    below = _below(loghub_report.verdicts(results))
    return Outcome(results, loghub_report.tables(results), below, statements(results))


def _consumers(quick: bool, progress: Callable[[str], None]) -> Outcome:
    results = consumers.compare(pace=consumers.QUICK if quick else None, progress=progress)
    below = _below(consumers_report.verdicts(results))
    return Outcome(results, consumers_report.tables(results), below, statements(results))


def _ledgers(quick: bool, progress: Callable[[str], None]) -> Outcome:
    results = ledgers.compare(pace=ledgers.QUICK if quick else None, progress=progress)
    below = _below(ledgers_report.verdicts(results))
    return Outcome(results, ledgers_report.tables(results), below, statements(results))


def _pipeline(quick: bool, progress: Callable[[str], None]) -> Outcome:
    results = pipeline.compare(pace=pipeline.QUICK if quick else None, progress=progress)
    below = _below(pipeline_report.verdicts(results))
    return Outcome(results, pipeline_report.tables(results), below, statements(results))


def _zeppelin(quick: bool, progress: Callable[[str], None]) -> Outcome:
    results = zeppelin.compare(pace=zeppelin.QUICK if quick else None, progress=progress)
    below = _below(zeppelin_report.verdicts(results))
    return Outcome(results, zeppelin_report.tables(results), below, zeppelin_report.notes(results))


def _zeppelin_growth(quick: bool, progress: Callable[[str], None]) -> Outcome:
    results = zeppelin_growth.grow(zeppelin_growth.QUICK if quick else None, progress=progress)
    tables = zeppelin_growth_report.tables(results)
    below = _below(zeppelin_growth_report.verdicts(results))
    return Outcome(results, tables, below, zeppelin_growth_report.notes(results))


def _clogs_ring(quick: bool, progress: Callable[[str], None]) -> Outcome:
    results = clogs_ring.compare(quick=quick, progress=progress)
    below = _below(clogs_ring.verdicts(results))
    return Outcome(results, clogs_ring.tables(results), below, clogs_ring.notes(results))


def _clogs_handler(quick: bool, progress: Callable[[str], None]) -> Outcome:
    results = clogs_handler.compare(quick=quick, progress=progress)
    below = _below(clogs_handler.verdicts(results))
    return Outcome(results, clogs_handler.tables(results), below, clogs_handler.notes(results))


def _clogs_shipping(quick: bool, progress: Callable[[str], None]) -> Outcome:
    pace = clogs_shipping.QUICK if quick else None
    results = clogs_shipping.compare(pace=pace, progress=progress)
    tables = clogs_shipping_report.tables(results)
    below = _below(clogs_shipping_report.verdicts(results))
    return Outcome(results, tables, below, clogs_shipping_report.notes(results))


def _below(verdicts: list[Verdict]) -> list[str]:
    return [
        "{}: {}, to reach {}".format(*verdict.shown()[:3])
        for verdict in verdicts
        if not verdict.is_reached
    ]


Part = Callable[[bool, Callable[[str], None]], Outcome]
PARTS: dict[str, Part] = {
    "group-commit": lambda quick, _progress: _rounds(group_commit, quick),
    "rpc-echo": lambda quick, _progress: _rounds(rpc_echo, quick),
    "raft": _raft,
    "logservice": _logservice,
    "loghub": _loghub,
    "consumers": _consumers,
    "pipeline": _pipeline,
    "ledgers": _ledgers,
    "zeppelin": _zeppelin,
    "zeppelin-growth": _zeppelin_growth,
    "clogs-ring": _clogs_ring,
    "clogs-handler": _clogs_handler,
    "clogs-shipping": _clogs_shipping,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="All benchmarks, ratios in one run.")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="short rounds, to see that it works")
    parser.add_argument("--write", action="store_true", help="put the figures into README.md")
    options = parser.parse_args()
    # A pipe or a file has no width of its own.
    console = rich.console.Console(width=None if sys.stdout.isatty() else WIDTH)
    for name in options.parts:
        texts = []
        with console.status(f"{name} …") as status:
            outcome = PARTS[name](options.quick, _progress(console, status, name))
        for table in outcome.tables:
            console.print(table)
            texts.append(_as_text(table))
        for note in outcome.notes:
            console.print(note, markup=False)
        texts.append("\n".join(outcome.notes) + "\n" if outcome.notes else "")
        for missed in outcome.below:
            console.print(f"below the goal: {name}, {missed}")
        RESULTS.mkdir(exist_ok=True)
        encoded = msgspec.json.format(msgspec.json.encode(outcome.figures))
        (RESULTS / f"{name}.json").write_bytes(encoded + b"\n")
        if options.write:
            _write(name, "\n".join(texts))
            console.print(f"written to {README}")


def _progress(
    console: rich.console.Console, status: rich.status.Status, name: str
) -> Callable[[str], None]:
    """One changing line on a terminal, a line per step elsewhere."""
    if console.is_terminal:
        return lambda step: status.update(f"{name}: {step}")
    return lambda step: console.print(f"{name}: {step}", markup=False)


def _as_text(table: rich.table.Table) -> str:
    """The table as it looks on a terminal of 140 columns, without colours."""
    file = io.StringIO()
    rich.console.Console(file=file, width=WIDTH).print(table)
    return f"```\n{file.getvalue().rstrip()}\n```\n"


def _write(part: str, figures: str) -> None:
    begin, end = f"<!-- figures: {part} -->", f"<!-- end of figures: {part} -->"
    before, _, rest = README.read_text().partition(begin)
    after = rest.partition(end)[2]
    day = datetime.datetime.now(datetime.UTC).date()
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}"
    python = f"Python {platform.python_version()}"
    head = f"{begin}\nMeasured {day} on {machine}, {python}.\n\n"
    README.write_text(before + head + figures + end + after)


if __name__ == "__main__":
    main()
