"""What was done so far, in one file that is replaced as a whole."""

import os
from pathlib import Path

import msgspec

from tests.soak.kinds import Failure, Result

SeedRange = tuple[int, int]
"""From the first seed up to, not with, the second."""


class Tallies(msgspec.Struct):
    """Totals over all runs, the seeds they came from, and what failed."""

    counts: dict[str, float] = {}
    done: dict[str, list[SeedRange]] = {}
    failures: list[Failure] = []

    def add(self, result: Result) -> None:
        self.done[result.kind] = _with(self.done.get(result.kind, []), result.seed)
        for name, count in result.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        if result.failure is not None:
            self.failures.append(result.failure)

    def has(self, kind: str, seed: int) -> bool:
        return any(first <= seed < end for first, end in self.done.get(kind, []))

    def next_seed(self, kind: str) -> int:
        return max((end for _, end in self.done.get(kind, [])), default=0)


def _with(ranges: list[SeedRange], seed: int) -> list[SeedRange]:
    """The ranges and one seed more, neighbours joined."""
    joined: list[SeedRange] = []
    for first, end in sorted([*ranges, (seed, seed + 1)]):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined


def load(folder: Path) -> Tallies:
    file = folder / "tallies.json"
    return msgspec.json.decode(file.read_bytes(), type=Tallies) if file.exists() else Tallies()


def save(folder: Path, tallies: Tallies) -> None:
    """In one step, so that an interruption leaves the old file or the new one."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "tallies.json.temporary"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(tallies)) + b"\n")
    os.replace(temporary, folder / "tallies.json")
