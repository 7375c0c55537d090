"""The part of a log that is not yet known to be durable: new entries, or a received snapshot.

`offset` is the index of the first entry here. Entries below `offset_in_progress` were handed to the
storage already and wait for its answer.
"""

from raftwood.base.errors import InvariantViolated
from raftwood.raft.core.messages import Entry, Snapshot


class Unstable:
    """Entries and snapshot on their way to storage."""

    __slots__ = ("entries", "offset", "offset_in_progress", "snapshot", "snapshot_in_progress")

    def __init__(self, offset: int) -> None:
        self.snapshot: Snapshot | None = None
        self.entries: list[Entry] = []
        self.offset = offset
        self.snapshot_in_progress = False
        self.offset_in_progress = offset

    def term(self, index: int) -> int | None:
        """The term of an entry if it is known here."""
        position = index - self.offset
        if position < 0:
            if self.snapshot is not None and self.snapshot.index == index:
                return self.snapshot.term
            return None
        if position < len(self.entries):
            return self.entries[position].term
        return None

    def next_entries(self) -> list[Entry]:
        """Entries that the storage has not been given yet."""
        return self.entries[self.offset_in_progress - self.offset :]

    def has_next_entries(self) -> bool:
        return self.offset_in_progress - self.offset < len(self.entries)

    def next_snapshot(self) -> Snapshot | None:
        return None if self.snapshot_in_progress else self.snapshot

    def accept_in_progress(self) -> None:
        """Everything here has been handed to the storage."""
        self.offset_in_progress = self.offset + len(self.entries)
        if self.snapshot is not None:
            self.snapshot_in_progress = True

    def stable_to(self, index: int, *, term: int) -> None:
        """The storage has everything up to an entry.

        An answer for an entry that was replaced since is ignored: what stands at its index now may
        not be durable. The term alone does not tell the two apart if a leader was deposed and
        elected again, which is why answers of an older term never come here.
        """
        known = self.term(index)
        if known is None or index < self.offset or known != term:
            return
        del self.entries[: index + 1 - self.offset]
        self.offset = index + 1
        self.offset_in_progress = max(self.offset_in_progress, self.offset)

    def stable_snapshot_to(self, index: int) -> None:
        if self.snapshot is not None and self.snapshot.index == index:
            self.snapshot = None
            self.snapshot_in_progress = False

    def restore(self, snapshot: Snapshot) -> None:
        """A received snapshot replaces everything."""
        self.offset = snapshot.index + 1
        self.offset_in_progress = self.offset
        self.entries = []
        self.snapshot = snapshot
        self.snapshot_in_progress = False

    def truncate_and_append(self, entries: list[Entry]) -> None:
        first = entries[0].index
        position = first - self.offset
        if position == len(self.entries):
            self.entries.extend(entries)
        elif position <= 0:
            # What the storage holds from here on is void: it will be overwritten.
            self.entries = list(entries)
            self.offset = self.offset_in_progress = first
        elif position < len(self.entries):
            self.entries[position:] = entries
            self.offset_in_progress = min(self.offset_in_progress, first)
        else:
            raise InvariantViolated(f"entries from {first} leave a gap in the log")
