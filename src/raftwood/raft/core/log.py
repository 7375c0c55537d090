"""The log as raft sees it: the entries in storage, followed by those that are not durable yet.

    applied <= applying <= committed <= last index

`applying` entries were handed to the state machine, `applied` ones came back from it. `Unstable`
is the part that is not yet known to be durable: `offset` is the index of its first entry, and
entries below `offset_in_progress` were handed to the storage already and wait for its answer.

Entries wait in two places because a node answers for its log before its disk does: elections and
conflicts are decided by the whole log, acknowledgements only by its durable part. A later leader
may replace entries while the storage still writes them, so every answer of the storage is checked
against what the log has now. `test_log` compares all of it with a plain list.
"""

from raftwood.base.errors import InvariantViolated, OutOfRange
from raftwood.raft.core.errors import EntryCompacted, EntryMissing
from raftwood.raft.core.messages import (
    NO_ENTRIES,
    UNLIMITED,
    Entry,
    Snapshot,
    entries_bytes,
    limit_entries,
)
from raftwood.raft.core.storage import Storage


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

        An answer for an entry that was replaced since is ignored: the entry at its index now may
        not be durable, and an acknowledgement of it could be lost in a crash. The entry's term
        alone does not tell the two apart: see `RawNode._append_response`.
        Test: test_log::test_an_answer_for_replaced_entries_makes_nothing_durable
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
        """Add entries, replacing those at and after the first of them.

        `offset_in_progress` goes back to the first replaced entry: the storage was given another
        one of that index, and the new one has to be handed out as well.
        Test: test_log::test_a_log_reads_as_the_list_of_its_entries
        """
        first = entries[0].index
        position = first - self.offset
        if position == len(self.entries):
            self.entries.extend(entries)
        elif position <= 0:
            # The storage's entries from here on are void: the next write replaces them.
            self.entries = list(entries)
            self.offset = self.offset_in_progress = first
        elif position < len(self.entries):
            self.entries[position:] = entries
            self.offset_in_progress = min(self.offset_in_progress, first)
        else:
            raise InvariantViolated(f"entries from {first} leave a gap in the log")


class RaftLog:
    """One group's log on one node."""

    __slots__ = (
        "_applying_bytes",
        "_applying_bytes_max",
        "_applying_paused",
        "applied",
        "applying",
        "committed",
        "last_index",
        "last_term",
        "storage",
        "unstable",
    )

    def __init__(self, storage: Storage, *, applying_bytes_max: int = UNLIMITED) -> None:
        self.storage = storage
        first, last = storage.first_index(), storage.last_index()
        self.committed = self.applying = self.applied = first - 1
        self.last_index = last
        self.last_term = storage.term(last)
        """The term of the last entry, kept because nearly every message asks for it."""
        self.unstable = Unstable(last + 1)
        self._applying_bytes_max = applying_bytes_max
        self._applying_bytes = 0
        self._applying_paused = False

    @property
    def first_index(self) -> int:
        snapshot = self.unstable.snapshot
        return self.storage.first_index() if snapshot is None else snapshot.index + 1

    def term(self, index: int) -> int:
        """The term of an entry; raises `OutOfRange` for what the log does not hold."""
        if index == self.last_index:
            return self.last_term
        unstable = self.unstable
        position = index - unstable.offset
        if 0 <= position < len(unstable.entries):
            return unstable.entries[position].term
        if position >= 0:
            raise EntryMissing(f"entry {index} lies after the last, {self.last_index}")
        if unstable.snapshot is None:
            return self.storage.term(index)
        # A snapshot is on its way to the storage, whose entries are void: they may be those of an
        # older leader, and a vote or an append compared with them would be wrong.
        # Test: test_log::test_a_snapshot_replaces_the_log_and_holds_back_what_follows
        if index == unstable.snapshot.index:
            return unstable.snapshot.term
        raise EntryCompacted(f"entry {index} lies before the first, {self.first_index}")

    def holds(self, index: int, *, term: int) -> bool:
        """Whether the log has an entry of that index and term."""
        if index == self.last_index:
            return self.last_term == term
        if index > self.last_index:
            return False
        try:
            return self.term(index) == term
        except OutOfRange:
            return False

    def up_to_date(self, index: int, *, term: int) -> bool:
        """Whether a log that ends there is at least as complete as this one (Raft, 5.4.1).

        The last term decides before the length: a leader that was cut off may have appended a
        thousand entries that nobody has, and one entry of a later term makes them void. A committed
        entry is on a majority, so of any majority one voter refuses a candidate that lacks it.
        Planted bug: "vote for a shorter log"
        """
        last_term = self.last_term
        return term > last_term or (term == last_term and index >= self.last_index)

    def entries(self, low: int, bytes_max: int) -> list[Entry]:
        """Entries from an index to the end, within a size."""
        if low > self.last_index:
            return NO_ENTRIES
        return self.slice(low, self.last_index + 1, bytes_max)

    def slice(self, low: int, high: int, bytes_max: int) -> list[Entry]:
        """Entries from `low` to below `high`, within a size but at least one."""
        unstable = self.unstable
        offset = unstable.offset
        if low >= offset:
            return limit_entries(unstable.entries[low - offset : high - offset], bytes_max)
        if low < self.first_index:
            raise EntryCompacted(f"entry {low} lies before the first, {self.first_index}")
        stored = self.storage.entries(low, min(high, offset), bytes_max)
        # Fewer than asked for means that the storage reached the size: entries from memory would
        # leave a gap behind them. The model in `tests/kits/raft/model` finds that soon.
        if high <= offset or len(stored) < offset - low:
            return stored
        room = bytes_max - entries_bytes(stored) if bytes_max < UNLIMITED else bytes_max
        if room <= 0:
            return stored
        following = limit_entries(unstable.entries[: high - offset], room)
        if bytes_max < UNLIMITED and len(following) == 1 and entries_bytes(following) > room:
            return stored
        return stored + following

    def append(self, entries: list[Entry]) -> None:
        """Add entries, replacing what stands at and after the first of them."""
        if not entries:
            return
        if entries[0].index <= self.committed:
            # No correct leader asks for it (leader completeness, Raft 5.4.3): a disk has lost
            # entries somewhere, or a bug. The state machines have applied the entry, so going on
            # would part the replicas in silence. Test:
            # test_log::test_what_is_committed_is_never_replaced
            raise InvariantViolated(
                f"entry {entries[0].index} would replace a committed one (up to {self.committed})"
            )
        self.unstable.truncate_and_append(entries)
        last = entries[-1]
        self.last_index, self.last_term = last.index, last.term

    def try_append(
        self, previous_index: int, previous_term: int, entries: list[Entry], commit: int
    ) -> bool:
        """Take a leader's entries if the log meets them at the previous one (Raft, 5.3).

        By this check, two logs that agree on an entry's index and term agree on all before it (log
        matching): all other rules compare two numbers where they mean whole logs.
        Test: test_log::test_entries_are_taken_only_where_the_logs_meet
        """
        if not self.holds(previous_index, term=previous_term):
            return False
        last = previous_index + len(entries)
        if entries:
            new = entries
            if previous_index < self.last_index:
                # Only a conflict cuts the log. An append that was delayed may be shorter than what
                # came after it, and this node has acknowledged that: cut off, it would be missing
                # where the leader has counted it. Planted bug: "truncated below commit".
                # Test: test_log::test_a_late_append_does_not_cut_what_came_after_it
                new = entries[self._matching(entries) :]
            self.append(new)
        # Up to `last` this log is the leader's; entries behind it may be an older leader's, and the
        # leader's commit index says nothing of those (Raft, figure 2: the minimum of the two).
        self.commit_to(min(commit, last))
        return True

    def _matching(self, entries: list[Entry]) -> int:
        """How many of the entries stand in the log already; a conflict ends them."""
        for position, entry in enumerate(entries):
            if not self.holds(entry.index, term=entry.term):
                return position
        return len(entries)

    def find_conflict(self, index: int, term: int) -> tuple[int, int]:
        """The last entry up to an index whose term is not above the given one, and its term.

        Both sides use it to skip a whole term in one round of probing (Raft, 5.3, end): terms never
        fall along a log, so an entry with a higher term cannot stand in the other log up to there.
        Term zero stands for an entry that is no longer known.
        Test: test_log::test_conflicts_are_looked_for_term_by_term
        """
        while index > 0:
            try:
                ours = self.term(index)
            except OutOfRange:
                return index, 0
            if ours <= term:
                return index, ours
            index -= 1
        return 0, 0

    def commit_to(self, index: int) -> None:
        """Advance the commit index. It never goes back: applied entries cannot be taken back."""
        if index <= self.committed:
            return
        if index > self.last_index:
            # A leader tells a node of no more than the node has acknowledged: this log has lost
            # entries that it acknowledged, and a quorum may be counting on them.
            # Test: test_log::test_a_commit_beyond_the_log_is_a_lost_log
            raise InvariantViolated(
                f"commit index {index} lies after the last entry, {self.last_index}: "
                "the log was truncated or lost"
            )
        self.committed = index

    def try_commit(self, index: int, *, term: int) -> bool:
        """Commit up to an entry if it is of the given term.

        A leader counts replicas for entries of its own term only (Raft, 5.4.2 and figure 8).
        Suppose a leader of term 4 copies an entry of term 2 to a majority. A node whose last entry
        is of term 3 still has the more complete log by the rule of votes, may win term 5 and
        replaces the entry. With an entry of term 4 on a majority it cannot win, and that one
        commits all before it. Planted bug: "commit of an old term". Script: commit_of_old_term.txt
        """
        if index > self.committed and term and self.holds(index, term=term):
            self.commit_to(index)
            return True
        return False

    def _appliable(self, *, allow_unstable: bool) -> int:
        """The last index that may be handed out to be applied."""
        # With asynchronous writes the state machine must not overtake this node's own disk. A
        # quorum of others makes an entry committed; if this node applied it, crashed and came back
        # without it, its state would be ahead of its log. Script: async_storage_writes.txt
        if allow_unstable:
            return self.committed
        return min(self.committed, self.unstable.offset - 1)

    def has_next_committed(self, *, allow_unstable: bool) -> bool:
        """Whether `next_committed` would hand out anything."""
        # Entries behind a snapshot build on its state, so they wait until it is restored.
        # Test: test_log::test_a_snapshot_replaces_the_log_and_holds_back_what_follows
        if self._applying_paused or self.unstable.snapshot is not None:
            return False
        committed = self.committed
        if self.applying >= committed:
            return False
        return allow_unstable or self.applying < self.unstable.offset - 1

    def next_committed(self, *, allow_unstable: bool) -> list[Entry]:
        """The next entries to apply, within the bound on bytes; none while a snapshot waits."""
        if not self.has_next_committed(allow_unstable=allow_unstable):
            return NO_ENTRIES
        low, high = self.applying + 1, self._appliable(allow_unstable=allow_unstable) + 1
        room = self._applying_bytes_max - self._applying_bytes
        if high <= self.unstable.offset:
            return self.storage.entries(low, high, room)
        return self.slice(low, high, room)

    def pause_applying(self) -> None:
        """Hand out nothing to be applied; the log still serves votes and acknowledgements."""
        self._applying_paused = True

    def accept_applying(self, index: int, size: int, *, allow_unstable: bool) -> None:
        """Entries up to an index were handed out to be applied."""
        if index > self.committed:
            raise InvariantViolated(f"entry {index} is applied before it is committed")
        self.applying = index
        self._applying_bytes += size
        # The limit bounds all that was handed out and is not applied. A batch that was cut short
        # has used it up, though its bytes may stay below: the next entry alone would pass the
        # limit. Test: test_log::test_committed_entries_come_in_portions_that_are_waited_for
        self._applying_paused = self._applying_bytes >= self._applying_bytes_max or (
            index < self.committed and index < self._appliable(allow_unstable=allow_unstable)
        )

    def applied_to(self, index: int, size: int) -> None:
        """Entries up to an index have been applied."""
        if not self.applied <= index <= self.committed:
            raise InvariantViolated(
                f"applied up to {index}, outside {self.applied} to {self.committed}"
            )
        self.applied = index
        self.applying = max(self.applying, index)
        self._applying_bytes = max(0, self._applying_bytes - size)
        self._applying_paused = self._applying_bytes >= self._applying_bytes_max

    def restore(self, snapshot: Snapshot) -> None:
        """Continue after a snapshot; all entries give way to it."""
        self.committed = snapshot.index
        self.last_index, self.last_term = snapshot.index, snapshot.term
        self.unstable.restore(snapshot)
