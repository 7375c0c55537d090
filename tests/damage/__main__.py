"""Prints what becomes of damaged files; exit code 1 if acked records were lost or wrong."""

import argparse
import io
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from raftwood.base.logs import set_up_logs
from raftwood.base.settings import LoggingSettings
from tests.damage.cells import DAMAGES, SCOPES, SEEDS, Cell, Outcome
from tests.damage.matrix import (
    PAGE,
    PROCESSES,
    RunCell,
    cells,
    command,
    real_cells,
    record,
    recorded,
    run_cell,
    table,
    told,
)
from tests.kits.servers.shared import Keeper


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    # Damage is what they warn of, again and again.
    set_up_logs(LoggingSettings(level="error"), clock=None, stream=io.StringIO())
    with ExitStack() as stack:
        run: RunCell = run_cell
        if options.real:
            stack.enter_context(Keeper())
            run = stack.enter_context(real_cells())
        return _run(options, run)


def _run(options: argparse.Namespace, run: RunCell) -> int:
    shown: dict[Cell, str] = {}
    is_bad = False
    for cell in _wanted(options):
        outcomes: list[Outcome] = []
        for seed in options.seeds:
            seen = run(cell, seed)
            outcomes.append(seen.outcome)
            if options.verbose or seen.outcome.is_failure:
                print(f"{cell}, seed {seed}: {seen.outcome}: {seen.reason}", flush=True)
            if seen.outcome.is_failure:
                is_bad = True
                print(f"  repeat: {command(cell, seed, is_real=options.real)}", flush=True)
        shown[cell] = told(outcomes)
        if options.record:  # at once: an interrupted run of hours keeps what it found
            record(PAGE, {cell: shown[cell]}, is_real=options.real)
    print(table(shown), end="")
    return int(is_bad)


def _wanted(options: argparse.Namespace) -> list[Cell]:
    known = recorded(PAGE, is_real=options.real) if options.missing else {}
    return [
        cell
        for cell in cells(options.processes or tuple(PROCESSES), is_real=options.real)
        if cell not in known
        and (not options.file or cell.file in options.file)
        and (not options.damage or cell.damage in options.damage)
        and (not options.scope or cell.scope in options.scope)
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.damage", description=__doc__)
    add = parser.add_argument
    add("processes", nargs="*", choices=[[], *PROCESSES], help="these alone")
    add("--real", action="store_true", help="real processes, on real folders")
    add("--file", action="append", help="this class of file alone; several may be named")
    add("--damage", action="append", choices=DAMAGES, help="this damage alone, or these")
    add("--scope", action="append", choices=SCOPES, help="so many damaged processes alone")
    add("--missing", action="store_true", help="cells that docs/repair.md lacks alone")
    add("--seeds", type=_seeds, default=SEEDS, help="FIRST:END, per cell")
    add("--verbose", action="store_true", help="tell each run and its reason")
    add(
        "--record",
        action="store_true",
        help="write each cell to the table in docs/repair.md, which keeps the others",
    )
    return parser


def _seeds(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end))


if __name__ == "__main__":
    sys.exit(main())
