"""The end of a group's log in memory, run by run.

All runs with entries that are not applied yet are here, so that applying, sending and cutting never
wait for the disk; what was applied stays as long as there is room.
"""

from collections import deque
from collections.abc import Iterable

from raftwood.raft.core import Entry


class EntryCache:
    """Consecutive entries up to the log's last one."""

    __slots__ = ("_entries", "_runs", "first_index", "size_bytes")

    def __init__(self, first_index: int) -> None:
        self.first_index = first_index
        self._entries: list[Entry] = []
        self._runs: deque[tuple[int, int]] = deque()
        """First index and size of each run."""
        self.size_bytes = 0

    @property
    def next_index(self) -> int:
        return self.first_index + len(self._entries)

    def get(self, index: int) -> Entry | None:
        position = index - self.first_index
        return self._entries[position] if 0 <= position < len(self._entries) else None

    def slice(self, low: int, high: int) -> list[Entry]:
        first = self.first_index
        return self._entries[low - first : high - first]

    def append(self, run: Iterable[Entry], size_bytes: int) -> None:
        """Add a run behind the last one."""
        self._runs.append((self.next_index, size_bytes))
        self._entries.extend(run)
        self.size_bytes += size_bytes

    def run_start(self, index: int) -> int:
        """The first index of the run that holds an index."""
        for first, _ in reversed(self._runs):
            if first <= index:
                return first
        return index

    def truncate(self, run_start: int) -> None:
        """Forget the runs from one on."""
        while self._runs and self._runs[-1][0] >= run_start:
            self.size_bytes -= self._runs.pop()[1]
        del self._entries[max(0, run_start - self.first_index) :]

    def shrink(self, *, applied: int, bytes_max: int) -> None:
        """Forget the oldest runs that were applied; a quarter more, for it moves all others."""
        if self.size_bytes <= bytes_max:
            return
        keep_bytes = bytes_max * 3 // 4
        runs = self._runs
        while len(runs) > 1 and self.size_bytes > keep_bytes and runs[1][0] <= applied + 1:
            self.size_bytes -= runs.popleft()[1]
        if runs:
            del self._entries[: runs[0][0] - self.first_index]
            self.first_index = runs[0][0]
