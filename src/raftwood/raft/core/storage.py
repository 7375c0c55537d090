"""The log's storage as raft reads it, and an implementation in memory.

Raft only reads; the caller writes what a `Ready` holds. Reads see all writes so far, synced or not.
They are plain calls, so a storage keeps its indexes in memory, and the entries that followers may
still need too. With one that reads from a disk, a follower far behind would stop the whole node.
"""

from typing import Protocol

from raftwood.base.errors import InvariantViolated
from raftwood.raft.core.errors import EntryCompacted, EntryMissing, SnapshotOutOfDate
from raftwood.raft.core.messages import (
    EMPTY_HARD_STATE,
    UNLIMITED,
    ConfState,
    Entry,
    HardState,
    Snapshot,
    limit_entries,
)


class Storage(Protocol):
    """The reading side of a log."""

    def initial_state(self) -> tuple[HardState, ConfState]:
        """Hard state and membership at the start; the membership is that of the applied index.

        A newer one would be changed twice, because the entries after the applied index come again.
        """

    def first_index(self) -> int:
        """The first entry that can be read: one past the snapshot."""

    def last_index(self) -> int:
        """The last entry; one below `first_index` if there is none."""

    def term(self, index: int) -> int:
        """The term of an entry, of the snapshot's last one too: the first append compares with it.

        Raises `EntryCompacted` below and `EntryMissing` above the stored entries.
        """

    def entries(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        """Entries from `low` to below `high`, cut at a size but never to nothing.

        Raises as `term` does.
        """

    def snapshot(self) -> Snapshot:
        """The latest snapshot; raises `SnapshotNotReady` while it is being made."""


class MemoryStorage:
    """A log that lives as long as the process: for tests and scripts."""

    __slots__ = ("_entries", "_snapshot", "_start", "_start_term", "hard_state")

    def __init__(self) -> None:
        self.hard_state = EMPTY_HARD_STATE
        self._snapshot = Snapshot()
        self._start = 0
        """The index before the first entry, and its term."""
        self._start_term = 0
        self._entries: list[Entry] = []

    def initial_state(self) -> tuple[HardState, ConfState]:
        return self.hard_state, self._snapshot.configuration

    def first_index(self) -> int:
        return self._start + 1

    def last_index(self) -> int:
        return self._start + len(self._entries)

    def term(self, index: int) -> int:
        position = index - self._start
        if position <= 0:
            if position == 0:
                return self._start_term
            raise EntryCompacted(f"entry {index} lies before the first, {self._start + 1}")
        if position > len(self._entries):
            raise EntryMissing(f"entry {index} lies after the last, {self.last_index()}")
        return self._entries[position - 1].term

    def entries(self, low: int, high: int, bytes_max: int = UNLIMITED) -> list[Entry]:
        if low <= self._start:
            raise EntryCompacted(f"entry {low} lies before the first, {self._start + 1}")
        if high > self.last_index() + 1:
            raise EntryMissing(f"entry {high - 1} lies after the last, {self.last_index()}")
        start = self._start + 1
        return limit_entries(self._entries[low - start : high - start], bytes_max)

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def append(self, entries: list[Entry]) -> None:
        """Write entries over whatever stands at and after the first of them."""
        if not entries:
            return
        position = entries[0].index - self._start - 1
        if position < 0:
            # A snapshot has replaced the first of these entries in the meantime.
            entries = entries[-position:]
            if not entries:
                return
            position = 0
        if position > len(self._entries):
            raise InvariantViolated(
                f"entries from {entries[0].index} leave a gap after {self.last_index()}"
            )
        if position < len(self._entries):
            del self._entries[position:]
        self._entries.extend(entries)

    def apply_snapshot(self, snapshot: Snapshot) -> None:
        """Replace the whole log by a snapshot."""
        if snapshot.index <= self._snapshot.index:
            raise SnapshotOutOfDate(
                f"a snapshot at {self._snapshot.index} is stored, newer than {snapshot.index}"
            )
        self._snapshot = snapshot
        self._start, self._start_term = snapshot.index, snapshot.term
        self._entries = []

    def create_snapshot(self, index: int, configuration: ConfState, data: bytes) -> Snapshot:
        """Keep a snapshot of the state at an applied index; the log stays as it is."""
        if index <= self._snapshot.index:
            raise SnapshotOutOfDate(f"a snapshot at {self._snapshot.index} is stored already")
        self._snapshot = Snapshot(index, self.term(index), configuration, data)
        return self._snapshot

    def compact(self, index: int) -> None:
        """Forget entries up to and with an index."""
        if index <= self._start:
            raise EntryCompacted(f"entries up to {self._start} are gone already")
        self._start_term = self.term(index)
        del self._entries[: index - self._start]
        self._start = index
