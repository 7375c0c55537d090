"""The log against a plain list: what is stored, what is not yet, and what both hold together."""

import random

import pytest

from raftwood.base.errors import InvariantViolated
from raftwood.raft.core import (
    UNLIMITED,
    ConfState,
    Entry,
    EntryCompacted,
    EntryMissing,
    MemoryStorage,
    Snapshot,
    SnapshotOutOfDate,
)
from raftwood.raft.core.log import RaftLog
from raftwood.raft.core.messages import entries_bytes, limit_entries


def _entries(*terms: int, first: int = 1) -> list[Entry]:
    return [Entry(term, index, payload=b"x" * 10) for index, term in enumerate(terms, first)]


def _stored(*terms: int) -> RaftLog:
    storage = MemoryStorage()
    storage.append(_entries(*terms))
    return RaftLog(storage)


def _persist(log: RaftLog) -> None:
    storage = log.storage
    assert isinstance(storage, MemoryStorage)
    storage.append(log.unstable.next_entries())
    log.unstable.accept_in_progress()


@pytest.mark.parametrize("seed", range(10))
def test_a_log_reads_as_the_list_of_its_entries(seed: int) -> None:
    source = random.Random(seed)
    log = RaftLog(MemoryStorage())
    model: list[tuple[int, int]] = []
    term = 1
    for _ in range(600):
        choice = source.random()
        if choice < 0.5:
            term += source.random() < 0.1
            start = source.randint(log.committed, len(model)) if choice < 0.15 else len(model)
            new = _entries(*[term] * source.randint(1, 4), first=start + 1)
            log.append(new)
            model[start:] = [(entry.index, entry.term) for entry in new]
        elif choice < 0.7:
            _persist(log)
        elif choice < 0.85 and log.unstable.entries:
            # The storage answers for some of what it was given.
            given = log.unstable.offset_in_progress - log.unstable.offset
            if given:
                entry = log.unstable.entries[source.randint(0, given - 1)]
                log.unstable.stable_to(entry.index, term=entry.term)
        elif choice < 0.9 and model:
            log.commit_to(source.randint(log.committed, len(model)))
        assert log.last_index == len(model)
        if model:
            low = source.randint(1, len(model))
            high = source.randint(low, len(model)) + 1
            found = [(entry.index, entry.term) for entry in log.slice(low, high, UNLIMITED)]
            assert found == model[low - 1 : high - 1]
            assert log.term(low) == model[low - 1][1]
            size = source.randint(1, 80)
            limited = log.slice(low, high, size)
            assert limited
            assert len(limited) == 1 or entries_bytes(limited) <= size
            assert limited == limit_entries(log.slice(low, high, UNLIMITED), size)


def test_entries_are_taken_only_where_the_logs_meet() -> None:
    log = _stored(1, 1, 2)
    assert not log.try_append(4, 2, _entries(3, first=5), 0)
    assert not log.try_append(3, 1, _entries(3, first=4), 0)
    assert log.try_append(3, 2, _entries(3, first=4), 2)
    assert (log.last_index, log.committed) == (4, 2)


def test_a_late_append_does_not_cut_what_came_after_it() -> None:
    log = _stored(1, 1, 1, 1)
    assert log.try_append(1, 1, _entries(1, first=2), 4)
    assert log.last_index == 4
    # Only what the message covers is known to be equal.
    assert log.committed == 2


def test_a_conflict_replaces_the_rest() -> None:
    log = _stored(1, 1, 1, 1)
    assert log.try_append(1, 1, _entries(2, first=2), 0)
    assert [entry.term for entry in log.slice(1, 3, UNLIMITED)] == [1, 2]
    assert log.last_index == 2


def test_what_is_committed_is_never_replaced() -> None:
    log = _stored(1, 1, 1)
    log.commit_to(2)
    with pytest.raises(InvariantViolated, match="committed"):
        log.try_append(0, 0, _entries(2), 0)


def test_a_commit_beyond_the_log_is_a_lost_log() -> None:
    with pytest.raises(InvariantViolated, match="lost"):
        _stored(1).commit_to(2)


def test_an_answer_for_replaced_entries_makes_nothing_durable() -> None:
    log = RaftLog(MemoryStorage())
    log.append(_entries(1, 1))
    log.unstable.accept_in_progress()
    log.append(_entries(2, first=2))
    log.unstable.stable_to(2, term=1)
    assert log.unstable.offset == 1
    log.unstable.stable_to(1, term=1)
    assert log.unstable.offset == 2
    assert [entry.term for entry in log.unstable.next_entries()] == [2]


def test_conflicts_are_looked_for_term_by_term() -> None:
    log = _stored(1, 1, 3, 3, 5)
    assert log.find_conflict(5, 4) == (4, 3)
    assert log.find_conflict(5, 2) == (2, 1)
    assert log.find_conflict(5, 5) == (5, 5)
    assert log.find_conflict(2, 0) == (0, 0)


def test_committed_entries_come_in_portions_that_are_waited_for() -> None:
    storage = MemoryStorage()
    storage.append(_entries(1, 1, 1))
    log = RaftLog(storage, applying_bytes_max=20)
    log.commit_to(3)
    first = log.next_committed(allow_unstable=True)
    assert [entry.index for entry in first] == [1]
    log.accept_applying(1, entries_bytes(first), allow_unstable=True)
    assert log.next_committed(allow_unstable=True) == []
    log.applied_to(1, entries_bytes(first))
    assert [entry.index for entry in log.next_committed(allow_unstable=True)] == [2]


def test_what_is_not_durable_is_not_applied_where_that_is_asked() -> None:
    log = RaftLog(MemoryStorage())
    log.append(_entries(1, 1))
    log.commit_to(2)
    assert len(log.next_committed(allow_unstable=True)) == 2
    assert log.next_committed(allow_unstable=False) == []
    log.unstable.accept_in_progress()
    log.unstable.stable_to(1, term=1)
    assert log.has_next_committed(allow_unstable=False)


def test_a_snapshot_replaces_the_log_and_holds_back_what_follows() -> None:
    log = _stored(1, 1)
    log.restore(Snapshot(10, 3, ConfState((1,))))
    assert (log.first_index, log.last_index, log.committed) == (11, 10, 10)
    assert log.term(10) == 3
    with pytest.raises(EntryCompacted):
        log.term(5)
    log.append(_entries(3, first=11))
    log.commit_to(11)
    assert not log.has_next_committed(allow_unstable=True)


def test_storage_says_what_it_does_not_have() -> None:
    storage = MemoryStorage()
    storage.append(_entries(1, 1, 2, 2))
    storage.compact(2)
    assert (storage.first_index(), storage.term(2)) == (3, 1)
    with pytest.raises(EntryCompacted):
        storage.term(1)
    with pytest.raises(EntryCompacted):
        storage.entries(2, 4)
    with pytest.raises(EntryCompacted):
        storage.compact(2)
    with pytest.raises(EntryMissing):
        storage.term(5)
    with pytest.raises(EntryMissing):
        storage.entries(3, 6)
    with pytest.raises(InvariantViolated, match="gap"):
        storage.append(_entries(2, first=6))
    storage.create_snapshot(3, ConfState((1,)), b"state")
    with pytest.raises(SnapshotOutOfDate):
        storage.create_snapshot(3, ConfState((1,)), b"state")
    with pytest.raises(SnapshotOutOfDate):
        storage.apply_snapshot(Snapshot(2, 1))
