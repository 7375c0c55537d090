"""A log shard's rules: leases, repetitions, truncation, timestamps, and what a reader may see."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftwood.base.errors import (
    Conflict,
    InvalidInput,
    RaftwoodError,
    SequenceForgotten,
    StoreDamaged,
    UnsupportedVersion,
)
from raftwood.logservice import log_rules
from raftwood.logservice import log_rules as log_rules_module
from raftwood.logservice.errors import (
    LeaseTooOld,
    LsnPastEnd,
    LsnTruncated,
    NotLeaseholder,
    SequenceGap,
)
from raftwood.logservice.log_rules import PRODUCERS_MAX, WINDOW, LogShardState
from raftwood.logservice.log_state_machine import LogStateMachine, restored
from raftwood.logservice.records import (
    DATA_OFFSET,
    HEAD,
    NO_PRODUCER,
    ORDERED,
    RESTORED,
    SEALED,
    RecordKind,
    RestoreBegin,
    RestoreFinish,
    UpdateKind,
    encode_begin,
    encode_finish,
    encode_restored,
    encode_update,
    encode_user_entry,
)
from raftwood.logservice.server.shard_service import kind_of
from raftwood.raft.core import Entry, EntryKind
from raftwood.raft.entry_format import LogEntry
from raftwood.raft.state_machine import CommittedCommand
from tests.kits.logservice.naive_log import NaiveLog

ONE, OTHER = b"1" * 16, b"2" * 16


def user(sequence: int = 0, *, holder: int = 0, name: bytes = NO_PRODUCER, **options: Any) -> bytes:
    return encode_user_entry(b"data", holder=holder, producer=name, sequence=sequence, **options)


def update(kind: UpdateKind, number: int) -> bytes:
    return encode_update(kind, number)


def is_shown(state: LogShardState, index: int, payload: bytes) -> bool:
    kind = kind_of(state, LogEntry(index, 1, EntryKind.NORMAL, payload))
    return kind is RecordKind.USER


def taken(data: bytes) -> LogShardState:
    return restored(data)


def saved(machine: LogStateMachine) -> bytes:
    return b"".join(machine.save_snapshot(None, lambda: False))  # type: ignore[arg-type]


# The lease


def test_the_lease_is_decided_when_an_entry_is_applied_and_a_refused_one_is_a_hole() -> None:
    state = LogShardState()
    assert state.apply(1, user(holder=7)) == 1  # nobody holds it: anyone may write
    assert state.apply(2, update(UpdateKind.LEASEHOLDER, 8)) == 8
    refused = user(holder=7)
    answer = state.apply(3, refused)
    assert isinstance(answer, NotLeaseholder)
    assert answer.holder == 8
    assert not is_shown(state, 3, refused)
    assert state.hole_at(3) is RecordKind.LEASE_REJECTED
    assert state.apply(4, user(holder=8)) == 4
    assert is_shown(state, 4, user(holder=8))


def test_only_a_larger_id_takes_the_lease_and_asking_twice_changes_nothing() -> None:
    state = LogShardState()
    assert state.apply(1, update(UpdateKind.LEASEHOLDER, 5)) == 5
    assert state.apply(2, update(UpdateKind.LEASEHOLDER, 5)) == 5
    for smaller in (0, 4):
        answer = state.apply(3, update(UpdateKind.LEASEHOLDER, smaller))
        assert isinstance(answer, LeaseTooOld)
        assert answer.holder == 5
    assert [(each.lsn, each.holder) for each in state.leases] == [(1, 5)]


def test_what_is_no_entry_of_this_program_is_never_shown_as_a_record() -> None:
    """The reader and the rules agree on what a record is: not on one byte of the kind alone."""
    state = LogShardState()
    good = user()
    newer = bytes([9]) + good[1:]
    strange = good[:DATA_OFFSET] + b"\x01" + good[DATA_OFFSET + 1 :]
    for index, payload in enumerate((newer, strange), 1):
        assert isinstance(state.apply(index, payload), InvalidInput)
        assert not is_shown(state, index, payload)
    assert isinstance(state.apply(3, b"short"), InvalidInput)


def test_a_record_that_is_restored_too_late_is_never_shown() -> None:
    """A repetition on its way while the restoring ended: its first copy is in the log already."""
    state = LogShardState()
    late = user(1, holder=0)
    late = late[:1] + bytes([RESTORED]) + late[2:]
    state.apply(1, user())
    assert isinstance(state.apply(2, late), Conflict)
    assert not is_shown(state, 2, late)


def test_what_was_refused_before_a_restore_hides_nothing_that_is_restored() -> None:
    state = LogShardState()
    assert isinstance(state.apply(5, user(2, name=ONE)), SequenceGap)
    state.apply(6, encode_begin(RestoreBegin(9, 3, 0, 1, 0)))
    restored_entries = [encode_restored(user()[DATA_OFFSET:], lsn) for lsn in (4, 5, 6)]
    for index, entry in enumerate(restored_entries, 7):
        assert isinstance(state.apply(index, entry), int)
    state.apply(10, encode_finish(RestoreFinish(9, 7, 3)))
    assert all(is_shown(state, index, entry) for index, entry in enumerate(restored_entries, 7))


# Repetitions


def test_a_repetition_is_answered_with_the_first_place_and_is_a_hole() -> None:
    state = LogShardState()
    assert state.apply(4, user(1, name=ONE)) == 4
    assert state.apply(5, user(2, name=ONE)) == 5
    assert state.apply(9, user(1, name=ONE)) == 4
    assert state.apply(10, user(2, name=ONE)) == 5
    assert not is_shown(state, 9, user(1, name=ONE))
    assert is_shown(state, 5, user(2, name=ONE))


def test_a_refused_record_stays_refused_when_it_is_repeated_under_a_new_lease() -> None:
    state = LogShardState()
    state.apply(1, update(UpdateKind.LEASEHOLDER, 2))
    assert isinstance(state.apply(2, user(1, name=ONE, holder=1)), NotLeaseholder)
    state.apply(3, update(UpdateKind.LEASEHOLDER, 3))
    assert isinstance(state.apply(4, user(1, name=ONE, holder=3)), NotLeaseholder)
    assert not is_shown(state, 4, user(1, name=ONE, holder=3))
    assert state.apply(5, user(2, name=ONE, holder=3)) == 5


def test_an_ordered_producer_leaves_no_gap_and_another_may() -> None:
    state = LogShardState()
    answer = state.apply(1, user(2, name=ONE))
    assert isinstance(answer, SequenceGap)
    assert answer.due == 1
    assert not is_shown(state, 1, user(2, name=ONE))
    assert state.apply(2, user(5, name=OTHER, is_ordered=False)) == 2
    assert state.apply(3, user(3, name=OTHER, is_ordered=False)) == 3
    assert state.apply(4, user(3, name=OTHER, is_ordered=False)) == 3
    assert isinstance(state.apply(5, user(4, name=OTHER)), SequenceForgotten)


def test_within_the_window_all_is_known_and_below_it_nothing() -> None:
    state = LogShardState()
    for sequence in range(1, WINDOW + 2):
        # Every other index is the raft group's own, so that no run is longer than one.
        assert state.apply(2 * sequence, user(sequence, name=ONE)) == 2 * sequence
    assert state.apply(5000, user(2, name=ONE)) == 4
    assert isinstance(state.apply(5001, user(1, name=ONE)), SequenceForgotten)
    producer = state.producers.get(ONE)
    assert producer is not None
    assert len(producer.runs) <= WINDOW


def test_the_producer_unused_for_longest_is_forgotten_first() -> None:
    state = LogShardState()
    names = [number.to_bytes(16, "big") for number in range(1, PRODUCERS_MAX + 1)]
    for index, name in enumerate(names, 1):
        state.apply(index, user(1, name=name))
    state.apply(PRODUCERS_MAX + 1, user(2, name=names[0]))
    state.apply(PRODUCERS_MAX + 2, user(1, name=b"n" * 16))
    assert len(state.producers) == PRODUCERS_MAX
    assert state.producers.get(names[0]) is not None
    assert state.producers.get(names[1]) is None


# Truncation, required LSN, timestamps


def test_truncation_is_inclusive_monotone_and_not_above_the_end() -> None:
    state = LogShardState()
    state.apply(10, user())
    assert state.apply(11, update(UpdateKind.TRUNCATE, 10)) == 10
    assert (state.first_lsn, state.freeable_index) == (11, 10)
    assert state.apply(12, update(UpdateKind.TRUNCATE, 4)) == 10
    answer = state.apply(13, update(UpdateKind.TRUNCATE, 13))
    assert isinstance(answer, LsnPastEnd)
    assert (answer.first, answer.next) == (11, 13)
    assert state.truncated == 10


def test_a_required_lsn_keeps_what_is_truncated_until_it_is_let_go() -> None:
    state = LogShardState()
    state.apply(50, user())
    assert state.apply(51, update(UpdateKind.REQUIRED, 20)) == 20
    state.apply(52, update(UpdateKind.TRUNCATE, 40))
    assert (state.first_lsn, state.freeable_index) == (20, 19)
    answer = state.apply(53, update(UpdateKind.REQUIRED, 19))
    assert isinstance(answer, LsnTruncated)
    assert isinstance(state.apply(54, update(UpdateKind.REQUIRED, 55)), LsnPastEnd)
    assert state.apply(55, update(UpdateKind.REQUIRED, 0)) == 0
    assert state.first_lsn == 41


def test_holes_and_leases_are_forgotten_with_what_was_truncated() -> None:
    state = LogShardState()
    for lsn in range(1, 40, 2):
        state.apply(lsn, update(UpdateKind.LEASEHOLDER, lsn))
        state.apply(lsn + 1, user(holder=1 << 40))
    state.apply(41, update(UpdateKind.TRUNCATE, 30))
    assert state.holes[0].first == 32
    assert state.leases[0].lsn == 31
    assert state.info(next_lsn=42).holes == 5


def test_timestamps_are_handed_out_once_each() -> None:
    state = LogShardState()
    assert state.apply(1, update(UpdateKind.TSO, 5)) == 1
    assert state.apply(2, update(UpdateKind.TSO, 1)) == 6
    assert state.apply(3, update(UpdateKind.TSO, 1)) == 7
    for count in (0, (1 << 32) + 1):
        assert isinstance(state.apply(4, update(UpdateKind.TSO, count)), InvalidInput)


# Snapshots


def test_a_snapshot_of_a_newer_version_is_refused_and_a_damaged_one_told() -> None:
    data = saved(LogStateMachine())
    with pytest.raises(UnsupportedVersion):
        taken(data[:4] + bytes([data[4] + 1]) + data[5:])
    for damaged in (b"", data[:4], b"XXXX" + data[4:], data[:-1]):
        with pytest.raises(StoreDamaged):
            taken(damaged)


# All of it, against the naive model


class Given(msgspec.Struct, frozen=True):
    """One entry: a record, an update or neither, after so many entries of the group's own."""

    skipped: int
    payload: bytes


_NAMES = st.sampled_from([NO_PRODUCER, *(bytes([number]) * 16 for number in range(1, 6))])
_APPENDS = st.builds(
    lambda name, sequence, holder, is_ordered: encode_user_entry(
        b"data", holder=holder, producer=name, sequence=sequence, is_ordered=is_ordered
    ),
    _NAMES,
    st.integers(0, 12),
    st.sampled_from([0, 1, 2, 3, SEALED]),
    st.booleans(),
)
_UPDATES = st.builds(
    encode_update,
    st.sampled_from(
        [UpdateKind.LEASEHOLDER, UpdateKind.TRUNCATE, UpdateKind.TSO, UpdateKind.REQUIRED]
    ),
    st.integers(0, 60),
)
_SEALS = st.just(encode_update(UpdateKind.LEASEHOLDER, SEALED))
_ENTRIES = st.lists(
    st.builds(Given, st.integers(0, 2), st.one_of(_APPENDS, _APPENDS, _APPENDS, _UPDATES, _SEALS)),
    min_size=1,
    max_size=60,
)


def _naive(log: NaiveLog, index: int, payload: bytes) -> int | str:
    _, flags, name, sequence, kind, holder = HEAD.unpack_from(payload)
    if kind == UpdateKind.USER:
        return log.append(
            index,
            name=name,
            sequence=sequence,
            holder=holder,
            is_ordered=bool(flags & ORDERED),
            data=payload[DATA_OFFSET:],
        )
    return log.update(index, UpdateKind(kind), int.from_bytes(payload[HEAD.size :], "big"))


def _applied(machine: LogStateMachine, commands: Sequence[CommittedCommand]) -> list[int | str]:
    return [
        type(each).__name__ if isinstance(each, RaftwoodError) else each
        for each in machine.update(commands)
    ]


@settings(max_examples=80)
@given(_ENTRIES, st.randoms(use_true_random=False))
def test_all_answers_are_the_naive_ones_however_entries_are_cut_into_batches(
    entries: list[Given], source: Any
) -> None:
    small = {"WINDOW": 4, "PRODUCERS_MAX": 3}
    with ExitStack() as patches:
        patches.enter_context(mock.patch.multiple(log_rules_module, WINDOW=4, PRODUCERS_MAX=3))
        patches.enter_context(mock.patch.object(log_rules, "WINDOW", small["WINDOW"]))
        naive = NaiveLog(window=small["WINDOW"], producers_max=small["PRODUCERS_MAX"])
        one, cut = LogStateMachine(), LogStateMachine()
        index, expected = 0, []
        commands: list[CommittedCommand] = []
        for each in entries:
            index += each.skipped + 1
            commands.append(Entry(1, index, EntryKind.NORMAL, each.payload))
            expected.append(_naive(naive, index, each.payload))
        answers: list[int | str] = []
        while len(answers) < len(commands):
            batch = commands[len(answers) : len(answers) + source.randint(1, 5)]
            answers += _applied(cut, batch)
            if source.random() < 0.2:
                cut.state = taken(saved(cut))
        assert answers == expected
        assert _applied(one, commands) == expected
        assert saved(one) == saved(cut)
        shown = {
            command.index: command.payload[DATA_OFFSET:]
            for command in commands
            if command.index >= one.state.first_lsn
            and is_shown(one.state, command.index, command.payload)
        }
        assert shown == naive.readable()
        assert (one.state.holder, one.state.tso) == (naive.holder, naive.tso)
        assert one.state.first_lsn == naive.first_lsn
        assert one.state.sealed_lsn == naive.sealed_lsn
        size = sum(len(data) - (HEAD.size - DATA_OFFSET) for data in naive.records.values())
        assert one.state.appended_bytes == size
