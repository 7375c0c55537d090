"""A group's log as the core reads it: the shared log's index, and entries from memory.

The core asks with plain calls. Entries that only the disk has are missed at first: the miss is
noted, the core is told to try again later, and the host fetches them meanwhile.
"""

from collections.abc import Callable
from typing import TypeVar

from raftwood.base.errors import OutOfRange, ProtocolError, StoreDamaged
from raftwood.disk.segment_log import SegmentLog
from raftwood.disk.segment_log.records import StoredRun
from raftwood.raft.core import (
    IS_CHANGE,
    ConfState,
    Entry,
    EntryCompacted,
    EntryMissing,
    HardState,
    Snapshot,
    SnapshotNotReady,
)
from raftwood.raft.core.messages import limit_entries
from raftwood.raft.host.entry_cache import EntryCache
from raftwood.raft.host.group_state import GroupState, decode_state, membership_of
from raftwood.raft.host.runs import EncodedRun, LogEntry, decode_run, view_run

_UNUSED_TICKS_MAX = 20
_SomeEntry = TypeVar("_SomeEntry", Entry, LogEntry)


class EntriesNotInMemory(OutOfRange):
    """The entries are on disk; they are being fetched."""

    code = "entries_not_in_memory"


class GroupStorage:
    """Implements the core's `Storage`."""

    def __init__(self, log: SegmentLog, group: int) -> None:
        self._log = log
        self._group = group
        self.state: GroupState = decode_state(group, log.state(group) or b"")
        self.configuration: ConfState = membership_of(self.state)
        """The membership at the index that the state machine starts from."""
        self.visible_snapshot: Snapshot | None = None
        """What a follower gets that needs entries from before the log's first."""
        self.cache = EntryCache(self.last_index() + 1)
        self.change_index = 0
        """The last membership change of the log that may not be committed yet; 0 for none."""
        self.missed: int | None = None
        """The first entry that was asked for in vain."""
        self._fetched: list[Entry] = []
        self._unused_ticks = 0

    def initial_state(self) -> tuple[HardState, ConfState]:
        return self.state.hard_state, self.configuration

    def first_index(self) -> int:
        return self._log.bounds(self._group).head

    def last_index(self) -> int:
        return self._log.next_index(self._group) - 1

    def term(self, index: int) -> int:
        entry = self.cache.get(index)
        if entry is not None:
            return entry.term
        head, next_index = self.first_index(), self.last_index() + 1
        if index == head - 1:
            return self.state.start_term
        if index < head:
            raise EntryCompacted(f"entry {index} lies before the first, {head}")
        if index >= next_index:
            raise EntryMissing(f"entry {index} lies after the last, {next_index - 1}")
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
        if low < self.first_index():
            raise EntryCompacted(f"entry {low} lies before the first, {self.first_index()}")
        self.missed = low
        raise EntriesNotInMemory(f"entry {low} is being read from disk: try again")

    def is_in_memory(self, index: int) -> bool:
        fetched = self._fetched
        return index >= self.cache.first_index or (
            bool(fetched) and fetched[0].index <= index <= fetched[-1].index
        )

    def snapshot(self) -> Snapshot:
        """The oldest one, so that nothing of the log after it stays away from the follower."""
        if self.missed is not None or self.visible_snapshot is None:
            raise SnapshotNotReady("the entries are being read from disk")
        return self.visible_snapshot

    async def fetch(self, first_index: int, bytes_max: int) -> None:
        """Bring entries into memory that only the disk has."""
        entries = await self.read(first_index, bytes_max)
        # What is still open to change is in the cache, which comes first.
        self._fetched = [
            entry for entry in entries if first_index <= entry.index < self.cache.first_index
        ]
        self._unused_ticks = 0

    async def read(self, first_index: int, bytes_max: int) -> list[Entry]:
        """Whole runs from the disk, from the one that holds an index on."""
        runs = await self._log.read(self._group, first_index, bytes_max=bytes_max)
        return [entry for run in runs for entry in self._decoded(run, decode_run)]

    async def view(self, first_index: int, bytes_max: int) -> list[LogEntry]:
        """As `read`, for readers."""
        runs = await self._log.read(self._group, first_index, bytes_max=bytes_max)
        return [entry for run in runs for entry in self._decoded(run, view_run)]

    async def load_tail(self, first_index: int, bytes_max: int) -> None:
        """After a start: bring what may be uncommitted, by whole runs, into the cache."""
        last = self.last_index()
        index = max(first_index, self.first_index())
        cache: EntryCache | None = None
        while index <= last:
            for run in await self._log.read(self._group, index, bytes_max=bytes_max):
                if cache is None:
                    cache = EntryCache(run.first_index)
                entries = self._decoded(run, decode_run)
                cache.append(entries, len(run.payload))
                index = cache.next_index
                for entry in entries:
                    if IS_CHANGE[entry.kind]:
                        self.change_index = entry.index
        self.cache = cache or EntryCache(last + 1)

    def _decoded(
        self, run: StoredRun, decode: Callable[[EncodedRun], list[_SomeEntry]]
    ) -> list[_SomeEntry]:
        try:
            return decode(EncodedRun(run.term, run.first_index, run.count, run.payload))
        except ProtocolError as error:
            raise StoreDamaged(
                f"group {self._group}: the entries from {run.first_index} on cannot be read: "
                f"{error.message}"
            ) from error

    def restart_after(self, state: GroupState) -> None:
        """The log was replaced by a snapshot and goes on behind it."""
        self.state = state
        self.change_index = 0
        self.cache = EntryCache(self.last_index() + 1)
        self._fetched = []
        self.missed = None

    def tick(self) -> None:
        """Give fetched entries up once nobody asks for them any more."""
        self._unused_ticks += 1
        if self._unused_ticks > _UNUSED_TICKS_MAX:
            self._fetched = []
