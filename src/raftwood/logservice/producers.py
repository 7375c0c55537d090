"""Who has written what: the last sequences of each producer, so that a retry writes nothing twice.

A producer numbers its records. Of its last `WINDOW` sequences it is known where each was written.
An ordered producer's sequences begin with 1 and come without a gap; another's may come in any order
within the window. What is kept depends on the entries alone, not on how they were cut into batches.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

import msgspec

# Constants and no settings: replicas that disagree on one of them would part.
WINDOW: Final = 1024
"""How many records a producer may have under way."""
PRODUCERS_MAX: Final = 16_384
RUNS_MAX: Final = 1 << 20
"""Of all producers: where many write in turns, each record is a run of its own. A new producer
takes the place of old ones; those that are there may go beyond it."""
REFUSED: Final = 0
"""In place of an LSN: the record came, and was refused for the lease."""


class Run(msgspec.Struct, array_like=True, gc=False):
    """Consecutive sequences at consecutive LSNs, or all refused."""

    first: int
    last: int
    lsn: int

    def lsn_of(self, sequence: int) -> int:
        return self.lsn + sequence - self.first if self.lsn else REFUSED


class Producer(msgspec.Struct, array_like=True):
    """One producer's last sequences."""

    top: int
    """The highest sequence that came."""
    used: int
    """The index of its last entry."""
    kept: int
    """As `used`, when it was last looked at for being forgotten."""
    runs: list[Run] = []
    """In order of their sequences."""

    def find(self, sequence: int) -> int | None:
        """Where a sequence was written, or `REFUSED`; None where it has not come yet."""
        position = bisect_right(self.runs, sequence, key=_first) - 1
        if position < 0:
            return None
        run = self.runs[position]
        return run.lsn_of(sequence) if sequence <= run.last else None

    def add_next(self, sequence: int, lsn: int) -> int:
        """Note a sequence above all others; by how much the number of runs grew."""
        self.top = sequence
        runs = self.runs
        if runs:
            run = runs[-1]
            if run.last + 1 == sequence and lsn == (run.lsn and run.lsn + sequence - run.first):
                run.last = sequence
                return 0
        runs.append(Run(sequence, sequence, lsn))
        forgotten = sequence - WINDOW
        if runs[0].last > forgotten:
            return 1
        dropped = bisect_right(runs, forgotten, key=_last)
        del runs[:dropped]
        return 1 - dropped

    def add_late(self, sequence: int, lsn: int) -> int:
        """Note a sequence below the highest one; by how much the number of runs grew."""
        position = bisect_right(self.runs, sequence, key=_first)
        self.runs.insert(position, Run(sequence, sequence, lsn))
        return 1


def _first(run: Run) -> int:
    return run.first


def _last(run: Run) -> int:
    return run.last


class Producers:
    """All producers of a shard, the one unused for longest forgotten when there are too many."""

    def __init__(self, known: dict[bytes, Producer] | None = None) -> None:
        self._known = known or {}
        self.get = self._known.get
        self.runs = sum(len(producer.runs) for producer in self._known.values())
        """Of all of them."""

    def __len__(self) -> int:
        return len(self._known)

    def items(self) -> Iterator[tuple[bytes, Producer]]:
        return iter(self._known.items())

    def add(self, name: bytes, index: int) -> Producer:
        while len(self._known) >= PRODUCERS_MAX or (self._known and self.runs >= RUNS_MAX):
            self._forget_one()
        producer = self._known[name] = Producer(0, index, index)
        return producer

    def _forget_one(self) -> None:
        """The first that was not used since it was last looked at."""
        known = self._known
        while True:
            name, producer = next(iter(known.items()))
            del known[name]
            if producer.used == producer.kept:
                self.runs -= len(producer.runs)
                return
            producer.kept = producer.used
            known[name] = producer
