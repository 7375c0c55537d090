"""One replica's part of a write to the shared log, worked out before anything is changed.

A write may be refused (the disk is full), so that planning and accepting are two steps.
"""

import msgspec

from raftwood.disk.segment_log import DropGroup, Record, Run, State, TruncateHead, TruncateTail
from raftwood.disk.segment_log.format import RECORD_HEADER_BYTES
from raftwood.raft.core import IS_CHANGE, Entry, EntryKind, Message, Snapshot
from raftwood.raft.host.group_state import GroupState
from raftwood.raft.host.group_storage import GroupStorage
from raftwood.raft.host.runs import EncodedRun, RunBook, encode_run

_NORMAL = EntryKind.NORMAL
STATE_EVERY_BYTES = 1 << 20
"""The commit index is stored along so often: what comes after it is replayed as uncommitted."""


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
        """What the records take in the log, entries and headers."""
        size = len(self.records) * RECORD_HEADER_BYTES
        for record in self.records:
            if type(record) is Run:
                size += len(record.payload)
            elif isinstance(record, State):
                size += len(record.data)
        return size

    def accept(self, storage: GroupStorage) -> int:
        """The log has taken the records; answers how many bytes of entries they held."""
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
    book: RunBook,
    *,
    committed: int,
    bytes_since_state: int,
) -> PlannedWrite:
    """What a message to the append thread asks of the log; `committed` is what the core knows."""
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
    """Whether a plan would be empty: most messages without entries only tell of a commit index."""
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
    planned.records.append(State(group, planned.state.encoded()))


def _last_change(entries: list[Entry]) -> int:
    """The index of the last membership change among entries; 0 for none."""
    found = 0
    for entry in entries:
        kind = entry.kind
        if kind is not _NORMAL and IS_CHANGE[kind]:
            found = entry.index
    return found


def _settles_change(storage: GroupStorage, committed: int) -> bool:
    """Whether a change that the log has is now known to be committed, and that is not stored yet.

    It is stored before anything later is acknowledged: from that the leader knows who needs the
    old members no more, not even after a start.
    """
    return storage.state.commit < storage.change_index <= committed


def _plan_commit(planned: PlannedWrite, group: int, storage: GroupStorage, commit: int) -> None:
    """A membership change is stored together with the commit index, which covers the one before.

    A membership counts from where it is applied, and after a start that is up to the stored commit
    index. A replica that was behind by two changes could win a vote, by members of long ago, that
    others hold as well: the majorities of memberships one change apart meet, those of two don't.
    """
    state = planned.state or storage.state
    if commit > state.commit:
        planned.state = msgspec.structs.replace(state, commit=commit)
        planned.records.append(State(group, planned.state.encoded()))


def _plan_cut(planned: PlannedWrite, group: int, storage: GroupStorage, first: int) -> None:
    """Entries replace others: runs are cut as a whole, so that a run's good part is rewritten."""
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
    """A snapshot of the leader takes the place of the whole log."""
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
        State(group, state.encoded()),
        TruncateHead(group, snapshot.index),
    )
