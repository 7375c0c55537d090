"""A group's log on the store's segment log: hard state, entries, and what a turn writes.

- `GroupState` is a group's small record: hard state, where the log begins, its snapshots, and how
  far a repair is. Version 1 knew no snapshots, and kept the first members there and not in the
  log.
- `GroupStorage` is the log as the core reads it, with plain calls: the shared log's index, and
  entries from memory. Entries that only the disk has are missed at first: the miss is noted, the
  core has to try again later, and the host fetches them meanwhile. All runs with entries that
  are not applied yet are in memory, so that applying, sending and cutting never wait for the disk;
  applied ones stay as long as there is room.
- `plan_write` works out a replica's part of a write before anything is changed. A write may be
  refused (the disk is full), so planning and accepting are two steps.
"""

from collections import deque
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from raftwood.base.errors import OutOfRange, ProtocolError, StoreDamaged
from raftwood.base.versions import decode_versioned
from raftwood.disk.segment_log import (
    DropGroup,
    Record,
    Run,
    SegmentLog,
    SetState,
    TruncateHead,
    TruncateTail,
)
from raftwood.disk.segment_log.format import RECORD_HEADER_BYTES
from raftwood.disk.segment_log.records import StoredRun
from raftwood.raft.core import (
    IS_CHANGE,
    ConfState,
    Entry,
    EntryCompacted,
    EntryKind,
    EntryMissing,
    HardState,
    Message,
    Snapshot,
    SnapshotNotReady,
)
from raftwood.raft.core.messages import limit_entries
from raftwood.raft.entry_format import (
    EncodedRun,
    LogEntry,
    RunCache,
    decode_run,
    encode_run,
    view_run,
)

STATE_VERSION: Final = 2
VOTES_NEVER: Final = (1 << 63) - 1
"""A value of `votes_from`: the log is lost, so that not even its end is known. The addition to the
group, which comes after all that the replica had acknowledged, takes its place."""


class RepairStage(StrEnum):
    """How far the repair of a damaged replica has come; `repair` tells the whole."""

    NONE = ""
    LOOK = "look"
    """The store has lost its log, and has this record of the group alone. The group is asked
    whether the store is a member."""
    LEAVE = "leave"
    """The group is asked to remove this store; the damaged data is still here."""
    JOIN = "join"
    """The data is dropped; the group is asked to add this store as a learner."""
    LEARN = "learn"
    """The replica runs again and catches up; then it becomes a voter, as it was."""


class GroupState(msgspec.Struct, frozen=True, array_like=True):
    """State that must survive a crash beside the entries (Raft, figure 2).

    Planted bug: "forgets votes and terms"
    """

    version: int
    term: int
    vote: int
    commit: int
    voters: tuple[int, ...] = ()
    """In version 1 the membership at the log's beginning, which is now in the log itself."""
    start_term: int = 0
    """The term of the entry before the log's first."""
    snapshots: tuple[int, ...] = ()
    """The indexes of the snapshots, oldest first; other files are left-overs."""
    is_removed: bool = False
    """The replica was removed; its term and vote are kept, because the store may be added again.

    Without them it could vote twice in the term in which it was removed.
    """
    forced_voters: tuple[int, ...] = ()
    """Set by an operator after the quorum was lost for good: the membership from the end on."""
    given_up: tuple[int, ...] = ()
    """Stores that an operator gave up then; their messages about this group are ignored.

    Two of three would else elect one another and bring the lost log back, in any term.
    """
    votes_from: int = 0
    """The replica neither votes nor stands before this entry is applied (decision 0008).

    It has dropped entries up to there that it had acknowledged: with its vote, a leader could be
    elected that lacks them.
    """
    repair: RepairStage = RepairStage.NONE
    repair_as_voter: bool = False
    """Whether the replica was a voter before its repair, and becomes one again."""

    @property
    def is_without_replica(self) -> bool:
        """Whether a repair has not yet started a replica again."""
        return self.repair in (RepairStage.LOOK, RepairStage.LEAVE, RepairStage.JOIN)

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.commit)

    def encoded(self) -> bytes:
        return _encode(self)


_encode = msgspec.msgpack.Encoder().encode


def first_state() -> GroupState:
    """The state of a group that has done nothing yet."""
    return GroupState(STATE_VERSION, 0, 0, 0)


def decode_state(group: int, data: bytes) -> GroupState:
    """A stored state, brought to this version; `UnsupportedVersion` for one of a newer version."""
    state = decode_versioned(
        data,
        GroupState,
        version=STATE_VERSION,
        name=f"the state of group {group}",
    )
    return msgspec.structs.replace(state, version=STATE_VERSION)


def membership_of(state: GroupState) -> ConfState:
    """The membership at the beginning of the log."""
    return ConfState(voters=state.voters)


class RaftEntryCache:
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
        """Adds a run behind the last one."""
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
        """Forgets the runs from one on."""
        while self._runs and self._runs[-1][0] >= run_start:
            self.size_bytes -= self._runs.pop()[1]
        del self._entries[max(0, run_start - self.first_index) :]

    def shrink(self, *, applied: int, bytes_max: int) -> None:
        """Forgets the oldest applied runs; a quarter more, for it moves all others."""
        if self.size_bytes <= bytes_max:
            return
        keep_bytes = bytes_max * 3 // 4
        runs = self._runs
        while len(runs) > 1 and self.size_bytes > keep_bytes and runs[1][0] <= applied + 1:
            self.size_bytes -= runs.popleft()[1]
        if runs:
            del self._entries[: runs[0][0] - self.first_index]
            self.first_index = runs[0][0]


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
        """The snapshot for followers that need entries from before the log begins."""
        self.cache = RaftEntryCache(self.last_index() + 1)
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
        """The entries that the core asks for, as far as memory has them without a gap."""
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
        """The oldest one: with it, a follower gets the whole log that this replica has."""
        # Entries on disk count as compacted for the core until they are fetched. A snapshot now
        # would replace the follower's log for a few entries that are there in a moment. Test:
        # test_group_storage::test_what_only_the_disk_has_is_missed_then_fetched_then_given_up
        if self.missed is not None or self.visible_snapshot is None:
            raise SnapshotNotReady("the entries are being read from disk")
        return self.visible_snapshot

    async def fetch(self, first_index: int, bytes_max: int) -> None:
        """Bring entries into memory that only the disk has."""
        entries = await self.read(first_index, bytes_max)
        # Entries that may still be replaced are in the cache, and the cache is asked first.
        self._fetched = [
            entry for entry in entries if first_index <= entry.index < self.cache.first_index
        ]
        self._unused_ticks = 0

    async def read(self, first_index: int, bytes_max: int) -> list[Entry]:
        """Whole runs from the disk, from the one that holds an index on."""
        runs = await self._log.read(self._group, first_index, bytes_max=bytes_max)
        return [entry for run in runs for entry in self._decoded(run, decode_run)]

    async def view(self, first_index: int, bytes_max: int) -> list[LogEntry]:
        """Like `read`, for readers."""
        runs = await self._log.read(self._group, first_index, bytes_max=bytes_max)
        return [entry for run in runs for entry in self._decoded(run, view_run)]

    async def load_tail(self, first_index: int, bytes_max: int) -> None:
        """After a start: bring entries that may be uncommitted, by whole runs, into the cache."""
        last = self.last_index()
        index = max(first_index, self.first_index())
        cache: RaftEntryCache | None = None
        while index <= last:
            for run in await self._log.read(self._group, index, bytes_max=bytes_max):
                if cache is None:
                    cache = RaftEntryCache(run.first_index)
                entries = self._decoded(run, decode_run)
                cache.append(entries, len(run.payload))
                index = cache.next_index
                for entry in entries:
                    if IS_CHANGE[entry.kind]:
                        self.change_index = entry.index
        self.cache = cache or RaftEntryCache(last + 1)

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
        self.cache = RaftEntryCache(self.last_index() + 1)
        self._fetched = []
        self.missed = None

    def tick(self) -> None:
        """Drops fetched entries once no read has used them for a while."""
        self._unused_ticks += 1
        if self._unused_ticks > _UNUSED_TICKS_MAX:
            self._fetched = []


_NORMAL = EntryKind.NORMAL
STATE_EVERY_BYTES = 1 << 20
"""The commit index is stored once in so many bytes; a start takes later entries for uncommitted.

It is learnt again from the leader, so to store it with every write would only cost room.
"""


class PlannedWrite:
    """Records for the log, and what changes in memory once the log has taken them."""

    __slots__ = ("change_index", "cut_from", "records", "runs", "snapshot", "state")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.runs: list[tuple[EncodedRun, list[Entry]]] = []
        self.change_index = 0
        self.cut_from: int | None = None
        self.state: GroupState | None = None
        self.snapshot: Snapshot | None = None

    def size_bytes(self) -> int:
        """The bytes of the records in the log, entries and headers."""
        size = len(self.records) * RECORD_HEADER_BYTES
        for record in self.records:
            if type(record) is Run:
                size += len(record.payload)
            elif isinstance(record, SetState):
                size += len(record.data)
        return size

    def accept(self, storage: GroupStorage) -> int:
        """Notes that the log has taken the records; returns how many bytes of entries they held."""
        if self.state is not None:
            storage.state = self.state
        if self.snapshot is not None and self.state is not None:
            storage.restart_after(self.state)
        cache = storage.cache
        if self.cut_from is not None:
            cache.truncate(self.cut_from)
            if storage.change_index >= self.cut_from:
                storage.change_index = 0
        if self.change_index:
            storage.change_index = self.change_index
        size = 0
        for run, entries in self.runs:
            cache.append(entries, len(run.payload))
            size += len(run.payload)
        return size


def plan_write(
    group: int,
    storage: GroupStorage,
    message: Message,
    book: RunCache,
    *,
    committed: int,
    bytes_since_state: int,
) -> PlannedWrite:
    """Plan the records for a message to the append thread; `committed` is the core's index."""
    planned = PlannedWrite()
    records = planned.records
    entries = message.entries
    if message.snapshot is not None:
        _plan_snapshot(planned, group, storage, message, message.snapshot)
    elif message.term and _is_state_due(storage.state, message, bytes_since_state):
        _plan_state(planned, group, storage, message)
    planned.change_index = _last_change(entries)
    if planned.change_index or _settles_change(storage, committed):
        last = entries[-1].index if entries else storage.last_index()
        _plan_commit(planned, group, storage, min(committed, last))
    if entries:
        first = entries[0].index
        if planned.snapshot is None and first <= storage.last_index():
            _plan_cut(planned, group, storage, first)
        runs = book.runs(entries)
        planned.runs += runs
        for run, _ in runs:
            records.append(Run(group, run.term, run.first_index, run.count, run.payload))
    return planned


def needs_no_write(
    storage: GroupStorage, message: Message, *, committed: int, bytes_since_state: int
) -> bool:
    """Whether a plan would be empty: most messages without entries only carry a commit index."""
    return (
        not message.entries
        and message.snapshot is None
        and not (message.term and _is_state_due(storage.state, message, bytes_since_state))
        and not _settles_change(storage, committed)
    )


def _is_state_due(state: GroupState, message: Message, bytes_since_state: int) -> bool:
    return (
        message.term != state.term
        or message.vote != state.vote
        or (bytes_since_state >= STATE_EVERY_BYTES and message.commit > state.commit)
    )


def _plan_state(planned: PlannedWrite, group: int, storage: GroupStorage, message: Message) -> None:
    planned.state = msgspec.structs.replace(
        storage.state, term=message.term, vote=message.vote, commit=message.commit
    )
    planned.records.append(SetState(group, planned.state.encoded()))


def _last_change(entries: list[Entry]) -> int:
    """The index of the last membership change among entries; 0 for none."""
    found = 0
    for entry in entries:
        kind = entry.kind
        if kind is not _NORMAL and IS_CHANGE[kind]:
            found = entry.index
    return found


def _settles_change(storage: GroupStorage, committed: int) -> bool:
    """Whether a change in the log is known to be committed, and that is not stored yet.

    It is stored before anything later is acknowledged. From that acknowledgement the leader knows
    that this store counts by the new members from now on, also after a restart. Only then may it
    tell a removed store to go, whose vote the old membership could still need. Test:
    test_writes::test_that_a_change_is_committed_is_stored_with_the_entries_that_come_after
    """
    return storage.state.commit < storage.change_index <= committed


def _plan_commit(planned: PlannedWrite, group: int, storage: GroupStorage, commit: int) -> None:
    """A membership change is stored together with the commit index, which covers the one before.

    A membership counts from where it is applied, and after a start that is up to the stored commit
    index. A replica that was behind by two changes could win an election by the votes of former
    members, while the present ones elect another leader: majorities of memberships one change apart
    meet, those two changes apart need not (Raft dissertation, section 4.1). Planted bug: "stores
    changes without the commit index". Test: test_writes::
    test_a_membership_change_stores_the_commit_index_that_covers_the_change_before
    """
    state = planned.state or storage.state
    if commit > state.commit:
        planned.state = msgspec.structs.replace(state, commit=commit)
        planned.records.append(SetState(group, planned.state.encoded()))


def _plan_cut(planned: PlannedWrite, group: int, storage: GroupStorage, first: int) -> None:
    """Cuts entries that others replace. Runs are cut whole, so a run's good part is rewritten."""
    cache = storage.cache
    start = cache.run_start(first)
    planned.cut_from = start
    planned.records.append(TruncateTail(group, start))
    if start < first:
        kept = cache.slice(start, first)
        run = encode_run(kept)
        planned.records.append(Run(group, run.term, run.first_index, run.count, run.payload))
        planned.runs.append((run, kept))


def _plan_snapshot(
    planned: PlannedWrite,
    group: int,
    storage: GroupStorage,
    message: Message,
    snapshot: Snapshot,
) -> None:
    """Replace the whole log by a leader's snapshot, in one write.

    A crash between two writes would leave a log without its beginning, or without anything.
    """
    state = msgspec.structs.replace(
        storage.state,
        commit=snapshot.index,
        start_term=snapshot.term,
        snapshots=(snapshot.index,),
        voters=(),
        forced_voters=(),
    )
    if message.term:
        state = msgspec.structs.replace(
            state, term=message.term, vote=message.vote, commit=max(message.commit, snapshot.index)
        )
    planned.state, planned.snapshot = state, snapshot
    planned.records += (
        DropGroup(group),
        SetState(group, state.encoded()),
        TruncateHead(group, snapshot.index),
    )
