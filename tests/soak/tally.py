"""What was run so far, by kind and commit, in one small file that is committed."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.soak.kinds import Failure, Result

FILE = Path(__file__).with_name("tally.json")
DIRTY = "-dirty"
"""Ends the name of a commit with changes that are not committed."""

SeedRange = tuple[int, int]
"""From the first seed up to, not with, the second."""


class Run(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All seeds of one kind that ran at one commit."""

    kind: str
    commit: str
    seeds: list[SeedRange] = []
    counts: dict[str, float] = {}
    failures: list[Failure] = []

    def add(self, result: Result) -> None:
        self.seeds = _with(self.seeds, result.seed)
        for name, count in result.counts.items():
            self.counts[name] = round(self.counts.get(name, 0) + count, 6)
        if result.failure is not None:
            self.failures.append(result.failure)


class Tally(msgspec.Struct):
    """Runs in the order in which they began."""

    runs: list[Run] = []

    def add(self, result: Result, commit: str) -> None:
        for run in self.runs:
            if (run.kind, run.commit) == (result.kind, commit):
                run.add(result)
                return
        self.runs.append(Run(kind=result.kind, commit=commit))
        self.runs[-1].add(result)

    def of(self, kind: str) -> Iterator[Run]:
        return (run for run in self.runs if run.kind == kind)

    def has(self, kind: str, seed: int, commit: str) -> bool:
        """Whether a seed ran at this commit: at another one it may show something else."""
        return any(
            first <= seed < end
            for run in self.of(kind)
            if run.commit == commit
            for first, end in run.seeds
        )

    def next_seed(self, kind: str) -> int:
        return max((end for run in self.of(kind) for _, end in run.seeds), default=0)

    @property
    def failures(self) -> list[Failure]:
        return [failure for run in self.runs for failure in run.failures]

    def counts(self) -> dict[str, float]:
        """Totals over all commits."""
        totals: dict[str, float] = {}
        for run in self.runs:
            for name, count in run.counts.items():
                totals[name] = totals.get(name, 0) + count
        return totals


def _with(ranges: list[SeedRange], seed: int) -> list[SeedRange]:
    """The ranges and one seed more, neighbours joined."""
    joined: list[SeedRange] = []
    for first, end in sorted([*ranges, (seed, seed + 1)]):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined


def present_commit() -> str:
    """The commit that is checked out; changes of the tally itself do not count."""
    root = FILE.parents[2]
    git = ("git", "-C", str(root))
    head = subprocess.run(
        (*git, "rev-parse", "--short=8", "HEAD"), capture_output=True, text=True, check=True
    ).stdout.strip()
    changed = subprocess.run(
        (*git, "status", "--porcelain", "--", "src", "tests", ":!tests/soak/tally.json"),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return head + DIRTY if changed else head


def load(file: Path) -> Tally:
    return msgspec.json.decode(file.read_bytes(), type=Tally) if file.exists() else Tally()


def save(file: Path, tally: Tally) -> None:
    """In one step, so that an interruption leaves the old file or the new one."""
    temporary = file.with_suffix(".temporary")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(tally), indent=1) + b"\n")
    os.replace(temporary, file)
