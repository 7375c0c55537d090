"""The command line of the soak; exit code 1 if a seed failed in this run."""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Console

from tests.soak.display import progress_on, show
from tests.soak.kinds import KINDS
from tests.soak.runner import Job, run_jobs
from tests.soak.tallies import Tallies, load, save

_SAVE_EVERY_S = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    kinds = [options.kind] if options.kind else options.only.split(",")
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        sys.exit(f"no such kind: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    if options.seed is not None:
        return _repeat(kinds, options.seed)
    return _soak(kinds, options.seeds, options.workers, options.folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("kind", nargs="?", choices=list(KINDS), help="this kind alone")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, separated by commas")
    parser.add_argument("--seeds", default="next:200", help="FIRST:END, or next:COUNT to go on")
    parser.add_argument("--seed", type=int, help="repeat one seed, outside of the tallies")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--folder", type=Path, default=Path(".soak"), help="of the tallies")
    return parser


def _repeat(kinds: list[str], seed: int) -> int:
    """Run a seed here and now; what it raises is shown as it is."""
    for kind in kinds:
        for name, count in KINDS[kind](seed).items():
            print(f"{kind} seed {seed}: {name}: {count:,.6g}")
    return 0


def _seeds(text: str, kind: str, tallies: Tallies) -> range:
    first, _, last = text.partition(":")
    try:
        if first == "next":
            begin = tallies.next_seed(kind)
            return range(begin, begin + int(last))
        return range(int(first), int(last))
    except ValueError:
        sys.exit(f"--seeds {text}: give FIRST:END, such as 1000:2000, or next:COUNT")


def _soak(kinds: list[str], seeds: str, workers: int, folder: Path) -> int:
    console = Console()
    tallies = load(folder)
    failed_before = len(tallies.failures)
    jobs: list[Job] = []
    for kind in kinds:
        wanted = _seeds(seeds, kind, tallies)
        jobs += [(kind, seed) for seed in wanted if not tallies.has(kind, seed)]
    # Seed by seed, so that an interrupted run has done some of every kind.
    jobs.sort(key=lambda job: job[1])
    try:
        _run(console, kinds, jobs, workers, folder, tallies)
    except KeyboardInterrupt:
        console.print("interrupted; the tallies so far are kept")
    finally:
        save(folder, tallies)
    show(console, tallies)
    return int(len(tallies.failures) > failed_before)


def _run(
    console: Console,
    kinds: list[str],
    jobs: list[Job],
    workers: int,
    folder: Path,
    tallies: Tallies,
) -> None:
    saved_at = time.monotonic()
    with progress_on(console) as progress, closing(run_jobs(jobs, workers)) as results:
        bars = {
            kind: progress.add_task(kind, total=sum(job[0] == kind for job in jobs), failed=0)
            for kind in kinds
        }
        for result in results:
            tallies.add(result)
            progress.advance(bars[result.kind])
            if result.failure is not None:
                failed = sum(each.kind == result.kind for each in tallies.failures)
                progress.update(bars[result.kind], failed=failed)
                progress.console.print(f"failed; repeat: {result.failure.command}", soft_wrap=True)
            if time.monotonic() - saved_at > _SAVE_EVERY_S:
                save(folder, tallies)
                saved_at = time.monotonic()


if __name__ == "__main__":
    sys.exit(main())
