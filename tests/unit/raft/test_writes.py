"""What a message to the append thread asks of the log."""

import itertools
from types import SimpleNamespace
from typing import Any

from raftwood.disk.segment_log import Run, SetState
from raftwood.raft.core import Entry, EntryKind, Message, MessageKind
from raftwood.raft.entry_format import RunCache
from raftwood.raft.group_log import (
    STATE_EVERY_BYTES,
    PlannedWrite,
    decode_state,
    first_state,
    needs_no_write,
    plan_write,
)


def plan(*entries: Entry, committed: int, change_index: int = 0) -> PlannedWrite:
    storage: Any = SimpleNamespace(
        state=first_state(),
        last_index=lambda: entries[0].index - 1,
        cache=None,
        change_index=change_index,
    )
    message = Message(MessageKind.STORAGE_APPEND, entries=list(entries))
    return plan_write(1, storage, message, RunCache(), committed=committed, bytes_since_state=0)


def entry(index: int, kind: EntryKind = EntryKind.NORMAL) -> Entry:
    return Entry(3, index, kind, b"payload")


def test_commands_alone_do_not_store_the_commit_index() -> None:
    planned = plan(entry(8), entry(9), committed=7)
    assert [type(record) for record in planned.records] == [Run]
    assert planned.state is None


def test_a_membership_change_stores_the_commit_index_that_covers_the_change_before() -> None:
    planned = plan(entry(8), entry(9, EntryKind.CHANGE_V2), committed=7)
    state, run = planned.records
    assert isinstance(state, SetState)
    assert isinstance(run, Run)
    assert decode_state(1, state.data).commit == 7
    assert planned.state == decode_state(1, state.data)


def test_the_commit_index_that_is_stored_lies_within_what_is_written() -> None:
    planned = plan(entry(8, EntryKind.CHANGE_V1), committed=20)
    assert planned.state is not None
    assert planned.state.commit == 8


def test_that_a_change_is_committed_is_stored_with_the_entries_that_come_after() -> None:
    assert plan(entry(8), committed=6, change_index=7).state is None
    planned = plan(entry(8), committed=7, change_index=7)
    state, run = planned.records
    assert isinstance(state, SetState)
    assert isinstance(run, Run)
    assert decode_state(1, state.data).commit == 7


def test_what_is_said_to_need_no_write_is_what_a_plan_without_records_comes_of() -> None:
    state = first_state()
    terms = (0, state.term, state.term + 1)
    votes = (state.vote, state.vote + 1)
    sizes = (0, STATE_EVERY_BYTES)
    counts = {True: 0, False: 0}
    for term, vote, commit, size, change_index in itertools.product(
        terms, votes, (state.commit, 7), sizes, (0, 6, 8)
    ):
        storage: Any = SimpleNamespace(
            state=state, last_index=lambda: 9, cache=None, change_index=change_index
        )
        message = Message(MessageKind.STORAGE_APPEND, term=term, vote=vote, commit=commit)
        planned = plan_write(1, storage, message, RunCache(), committed=7, bytes_since_state=size)
        is_none = needs_no_write(storage, message, committed=7, bytes_since_state=size)
        assert is_none is (not planned.records)
        counts[is_none] += 1
    assert all(counts.values())
