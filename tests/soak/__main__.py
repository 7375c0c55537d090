"""Runs seeds of every property, and keeps count; exit code 1 if a seed failed in this run."""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

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

from tests.soak import record
from tests.soak.kinds import KINDS, LONG_RUN
from tests.soak.runner import Job, run_jobs
from tests.soak.tally import FILE, Tally, load, present_commit, save

_SAVE_EVERY_S = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    kinds = [options.kind] if options.kind else options.only.split(",")
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        sys.exit(f"no such kind: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    if options.record:
        record.write(record.PAGE, load(options.tally))
        return 0
    if options.seed is not None:
        return _repeat(kinds, options.seed)
    return _soak(kinds, options.seeds, options.workers, options.tally)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("kind", nargs="?", choices=list(KINDS), help="this kind alone")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, separated by commas")
    parser.add_argument("--seeds", default="next:200", help="FIRST:END, or next:COUNT to go on")
    parser.add_argument("--seed", type=int, help="repeat one seed, outside of the tally")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--tally", type=Path, default=FILE, help="the file that keeps count")
    parser.add_argument(
        "--record", action="store_true", help="write the totals into docs/assurance.md"
    )
    return parser


def _repeat(kinds: list[str], seed: int) -> int:
    """Run a seed here and now; what it raises is shown as it is."""
    for kind in kinds:
        for name, count in KINDS[kind](seed).items():
            print(f"{kind} seed {seed}: {name}: {count:,.6g}")
    return 0


def _seeds(text: str, kind: str, tally: Tally) -> range:
    first, _, last = text.partition(":")
    try:
        if first == "next":
            begin = tally.next_seed(kind)
            return range(begin, begin + int(last))
        return range(int(first), int(last))
    except ValueError:
        sys.exit(f"--seeds {text}: give FIRST:END, such as 1000:2000, or next:COUNT")


def _soak(kinds: list[str], seeds: str, workers: int, file: Path) -> int:
    console = Console()
    commit = present_commit()
    tally = load(file)
    failed_before = len(tally.failures)
    jobs: list[Job] = []
    for kind in kinds:
        wanted = _seeds(seeds, kind, tally)
        jobs += [(kind, seed) for seed in wanted if not tally.has(kind, seed, commit)]
    # Seed by seed, so that an interrupted run has done some of every kind.
    jobs.sort(key=lambda job: job[1])
    try:
        _run(console, kinds, jobs, workers, file, tally, commit)
    except KeyboardInterrupt:
        console.print("interrupted; the tally so far is kept")
    finally:
        save(file, tally)
    _show(console, tally)
    return int(len(tally.failures) > failed_before)


def _run(
    console: Console,
    kinds: list[str],
    jobs: list[Job],
    workers: int,
    file: Path,
    tally: Tally,
    commit: str,
) -> None:
    saved_at = time.monotonic()
    with _progress_on(console) as progress, closing(run_jobs(jobs, workers)) as results:
        bars = {
            kind: progress.add_task(kind, total=sum(job[0] == kind for job in jobs), failed=0)
            for kind in kinds
        }
        for result in results:
            tally.add(result, commit)
            progress.advance(bars[result.kind])
            if result.failure is not None:
                failed = sum(each.kind == result.kind for each in tally.failures)
                progress.update(bars[result.kind], failed=failed)
                progress.console.print(f"failed; repeat: {result.failure.command}", soft_wrap=True)
            if time.monotonic() - saved_at > _SAVE_EVERY_S:
                save(file, tally)
                saved_at = time.monotonic()


def _progress_on(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def _show(console: Console, tally: Tally) -> None:
    """The totals beside the figures of a long run."""
    shown = Table(title="All runs so far")
    shown.add_column("what")
    for name in ("so far", "long run", "share"):
        shown.add_column(name, justify="right")
    counts = tally.counts()
    for name in [*LONG_RUN, *(name for name in counts if name not in LONG_RUN)]:
        count, goal = counts.get(name, 0), LONG_RUN.get(name)
        share = f"{count / goal:.1%}" if goal else ""
        shown.add_row(name, f"{count:,.6g}", f"{goal:,.0f}" if goal else "", share)
    shown.add_row("failures", str(len(tally.failures)), "0", "")
    console.print(shown)
    for failure in tally.failures:
        console.print(f"{failure.kind} seed {failure.seed}: {failure.error}", markup=False)
        console.print(f"  repeat: {failure.command}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
