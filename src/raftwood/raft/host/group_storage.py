"""A group's log as the core reads it: the shared log's index, and entries from memory.

The core asks with plain calls. Entries that only the disk has are missed at first: the miss is
noted, the core is told to try again later, and the host fetches them meanwhile.
"""

from raftwood.base.errors import OutOfRange
from raftwood.disk.segment_log import SegmentLog
from raftwood.raft.core import (
    ConfState,
    Entry,
    EntryMissing,
    HardState,
    Snapshot,
    SnapshotNotReady,
)
from raftwood.raft.core.messages import limit_entries
from raftwood.raft.host.entry_cache import EntryCache
from raftwood.raft.host.group_state import GroupState, decode_state
from raftwood.raft.host.runs import EncodedRun, decode_run

_UNUSED_TICKS_MAX = 20


class EntriesNotInMemory(OutOfRange):
    """The entries are on disk; they are being fetched."""

    code = "entries_not_in_memory"


class GroupStorage:
    """Implements the core's `Storage`."""

    def __init__(self, log: SegmentLog, group: int) -> None:
        self._log = log
        self._group = group
        self.state: GroupState = decode_state(group, log.state(group) or b"")
        self.cache = EntryCache(self.last_index() + 1)
        self.missed: int | None = None
        """The first entry that was asked for in vain."""
        self._fetched: list[Entry] = []
        self._unused_ticks = 0

    def initial_state(self) -> tuple[HardState, ConfState]:
        return self.state.hard_state, self.state.configuration

    def first_index(self) -> int:
        return self._log.bounds(self._group).head

    def last_index(self) -> int:
        return self._log.bounds(self._group).next_index - 1

    def term(self, index: int) -> int:
        if index == 0:
            return 0
        entry = self.cache.get(index)
        if entry is not None:
            return entry.term
        return self._log.term_of(self._group, index)

    def entries(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        """As the core asks, or a part of it: what is in memory without a gap."""
        cache = self.cache
        if low >= cache.first_index:
            if high > cache.next_index:
                raise EntryMissing(f"entry {high - 1} lies after the last, {cache.next_index - 1}")
            return limit_entries(cache.slice(low, high), bytes_max)
        fetched = self._fetched
        if fetched and fetched[0].index <= low <= fetched[-1].index:
            self._unused_ticks = 0
            start = fetched[0].index
            return limit_entries(fetched[low - start : high - start], bytes_max)
        self.missed = low
        raise EntriesNotInMemory(f"entry {low} is being read from disk: try again")

    def snapshot(self) -> Snapshot:
        """There is none: the whole log is kept, and entries on disk are on their way."""
        raise SnapshotNotReady("the entries are being read from disk")

    async def fetch(self, first_index: int, bytes_max: int) -> None:
        """Bring applied entries into memory for a follower that is far behind."""
        runs = await self._log.read(self._group, first_index, bytes_max=bytes_max)
        entries: list[Entry] = []
        for run in runs:
            entries += decode_run(EncodedRun(run.term, run.first_index, run.count, run.payload))
        # What is still open to change is in the cache, which comes first.
        self._fetched = [entry for entry in entries if entry.index < self.cache.first_index]
        self._unused_ticks = 0

    async def load_tail(self, bytes_max: int) -> None:
        """After a start: bring what may be uncommitted, by whole runs, into the cache."""
        last = self.last_index()
        index = self.state.commit + 1
        while index <= last:
            runs = await self._log.read(self._group, index, bytes_max=bytes_max)
            if index == self.state.commit + 1:
                self.cache = EntryCache(runs[0].first_index)
            for run in runs:
                encoded = EncodedRun(run.term, run.first_index, run.count, run.payload)
                self.cache.append(decode_run(encoded), len(run.payload))
            index = self.cache.next_index

    def tick(self) -> None:
        """Give fetched entries up once nobody asks for them any more."""
        self._unused_ticks += 1
        if self._unused_ticks > _UNUSED_TICKS_MAX:
            self._fetched = []
