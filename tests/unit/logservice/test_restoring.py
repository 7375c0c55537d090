"""Restoring, without a cluster: LSNs apart from indexes, repetitions, snapshots, refusals."""

import random

import pytest

from raftwood.base.errors import Conflict, InvalidInput
from raftwood.logservice.errors import NotLeaseholder
from raftwood.logservice.log_rules import LogShardState, LsnMap, Span
from raftwood.logservice.log_state_machine import LogStateMachine, restored
from raftwood.logservice.records import (
    RestoreBegin,
    RestoreFinish,
    UpdateKind,
    encode_begin,
    encode_finish,
    encode_restored,
    encode_update,
    encode_user_entry,
)
from raftwood.raft.core import Entry

DATA = encode_user_entry(b"payload", holder=0)[26:]
BEGIN = RestoreBegin(backup=7, truncated_lsn=99, required_lsn=0, tso=50, holder=3)


class Log:
    """A shard's entries, applied one after the other as a raft group numbers them."""

    def __init__(self) -> None:
        self.state = LogShardState()
        self.index = 4  # elections and members stand before

    def apply(self, payload: bytes) -> object:
        self.index += 1
        (answer,) = self.state.apply_all([Entry(1, self.index, payload=payload)])
        return answer

    def restore(self, *lsns: int) -> list[object]:
        return [self.apply(encode_restored(DATA, lsn)) for lsn in lsns]

    def begin(self, begin: RestoreBegin = BEGIN) -> object:
        return self.apply(encode_begin(begin))

    def finish(self, *, next_lsn: int, records: int, backup: int = 7) -> object:
        return self.apply(
            encode_finish(RestoreFinish(backup=backup, next_lsn=next_lsn, records=records))
        )


def test_restored_records_keep_their_lsns_and_appends_go_on_after_them() -> None:
    log = Log()
    assert log.begin() == 99
    first = log.index + 1
    assert log.restore(100, 101, 105) == [100, 101, 105]
    assert log.apply(encode_update(UpdateKind.FILL, 106)) == 106
    log.index += 2  # an election meanwhile
    assert log.restore(107) == [107]
    assert log.finish(next_lsn=200, records=4) == 200
    state = log.state
    assert (state.truncated, state.tso, state.holder) == (99, 50, 3)
    assert log.apply(encode_user_entry(b"x", holder=3)) == 200
    assert log.apply(encode_update(UpdateKind.TSO, 1)) == 50
    assert isinstance(log.apply(encode_user_entry(b"x", holder=1)), NotLeaseholder)
    assert state.hole_at(202) is not None
    assert state.lsns.lsn_of(first) == 100
    assert state.lsns.lsn_of(first + 4) is None
    assert state.lsns.index_from(102) == first + 2
    assert state.lsns.lsn_from(log.index + 1) == 203
    # Truncation is by LSN, what is freed is by index.
    assert state.freeable_index == first - 1
    assert log.apply(encode_update(UpdateKind.TRUNCATE, 103)) == 103
    assert state.freeable_index == first + 1
    assert log.apply(encode_update(UpdateKind.TRUNCATE, 201)) == 201
    assert state.lsns.index_from(202) == state.freeable_index + 1
    assert len(state.lsns.spans) == 1


def test_a_repeated_batch_changes_nothing_and_a_lost_record_is_noticed() -> None:
    log = Log()
    log.begin()
    log.restore(100, 101)
    assert log.restore(100, 101, 102) == [100, 101, 102]
    assert log.begin() == 102
    assert isinstance(log.finish(next_lsn=104, records=4), Conflict)
    assert isinstance(log.finish(next_lsn=102, records=3), Conflict)
    assert isinstance(log.finish(next_lsn=103, records=3, backup=8), Conflict)
    assert log.finish(next_lsn=103, records=3) == 103
    assert log.finish(next_lsn=103, records=3) == 103
    following = log.apply(encode_user_entry(b"", holder=3))
    assert following == 104  # the repetition stands in the log as well
    assert isinstance(log.restore(110)[0], Conflict)
    assert isinstance(log.begin(), Conflict)


def test_a_shard_that_is_restored_takes_nothing_else_and_frees_nothing() -> None:
    log = Log()
    log.begin()
    log.restore(100)
    for entry in (
        encode_user_entry(b"x", holder=3),
        encode_update(UpdateKind.TRUNCATE, 100),
        encode_update(UpdateKind.LEASEHOLDER, 9),
        encode_update(UpdateKind.TSO, 1),
        encode_begin(RestoreBegin(8, 0, 0, 1, 0)),
    ):
        assert isinstance(log.apply(entry), Conflict)
    assert log.state.freeable_index == 0
    assert log.finish(next_lsn=101, records=1) == 101


@pytest.mark.parametrize(
    "entry",
    [
        encode_user_entry(b"x", holder=0),
        encode_update(UpdateKind.LEASEHOLDER, 1),
        encode_update(UpdateKind.TSO, 1),
    ],
)
def test_only_an_empty_shard_can_be_restored(entry: bytes) -> None:
    log = Log()
    log.apply(entry)
    assert isinstance(log.begin(), Conflict)
    assert isinstance(log.restore(100)[0], Conflict)
    assert isinstance(log.finish(next_lsn=100, records=0), Conflict)
    assert log.apply(encode_user_entry(b"x", holder=log.state.holder)) == log.index
    assert isinstance(log.apply(encode_begin(BEGIN)[:-1]), InvalidInput)


def test_the_map_survives_a_snapshot_half_way_and_after_the_end() -> None:
    log = Log()

    def through_a_snapshot() -> None:
        machine = LogStateMachine()
        machine.state = log.state
        log.state = restored(b"".join(machine.save_snapshot(None, lambda: False)))  # type: ignore[arg-type]

    through_a_snapshot()
    log.begin()
    log.restore(100, 300)
    through_a_snapshot()
    assert log.state.is_restoring
    log.restore(300, 301)
    assert log.finish(next_lsn=400, records=3) == 400
    through_a_snapshot()
    assert log.apply(encode_user_entry(b"x", holder=3)) == 400
    assert log.state.lsns.spans[-1].count == 0


def test_a_restored_record_elsewhere_is_a_hole_and_a_stray_entry_hides_no_restored_one() -> None:
    log = Log()
    assert isinstance(log.restore(300)[0], Conflict)
    assert log.state.hole_at(log.index) is not None
    log = Log()
    log.begin(RestoreBegin(7, 0, 0, 1, 0))
    assert isinstance(log.apply(b"stray"), InvalidInput)
    log.restore(log.index)
    assert log.state.holes == []
    log.finish(next_lsn=300, records=1)
    assert isinstance(log.restore(400)[0], Conflict)
    assert isinstance(log.apply(b"stray"), InvalidInput)
    assert log.state.hole_at(300) is not None
    assert log.state.hole_at(301) is not None


def test_numbers_that_could_overflow_are_refused() -> None:
    log = Log()
    assert isinstance(log.begin(RestoreBegin(7, 1 << 62, 0, 1, 0)), InvalidInput)
    log.begin()
    assert isinstance(log.restore(1 << 62)[0], InvalidInput)
    assert isinstance(log.finish(next_lsn=1 << 62, records=0), Conflict)


def test_appends_of_a_client_go_on_after_a_restore_by_the_short_way_too() -> None:
    log = Log()
    log.begin(RestoreBegin(7, 0, 0, 1, 0))
    log.restore(100)
    producer = b"p" * 16
    entries = [
        encode_user_entry(b"x", holder=0, producer=producer, sequence=number)
        for number in range(1, 4)
    ]
    assert isinstance(log.apply(entries[0]), Conflict)
    log.finish(next_lsn=300, records=1)
    assert [log.apply(entry) for entry in entries] == [300, 301, 302]
    assert log.apply(entries[1]) == 301
    flagged = entries[0][:1] + bytes([2]) + entries[0][2:]
    assert isinstance(log.apply(flagged), Conflict)


@pytest.mark.parametrize("seed", range(20))
def test_the_map_agrees_with_a_plain_list(seed: int) -> None:
    rng = random.Random(seed)
    index, lsn, pairs, lsns = 3, 10, list[tuple[int, int]](), LsnMap()
    for _ in range(rng.randrange(1, 40)):
        index += rng.choice([1, 1, 1, 2, 5])
        lsn += rng.choice([1, 1, 1, 3])
        pairs.append((index, lsn))
        lsns.add(index, lsn)
    index, lsn = index + rng.randrange(1, 4), lsn + rng.randrange(1, 4)
    lsns.go_on(index, lsn)
    pairs += [(index + each, lsn + each) for each in range(50)]
    if rng.random() < 0.5:
        first = rng.choice(pairs[:-40])[1]
        lsns.forget_below(first)
        pairs = [pair for pair in pairs if pair[1] >= first]
    by_index = dict(pairs)
    for each in range(pairs[0][0], index + 40):
        assert lsns.lsn_of(each) == by_index.get(each)
        assert lsns.lsn_from(each) == next(lsn for index, lsn in pairs if index >= each)
    for each in range(pairs[0][1], lsn + 40):
        assert lsns.index_from(each) == next(index for index, lsn in pairs if lsn >= each)


def test_without_spans_an_lsn_is_an_index() -> None:
    lsns = LsnMap()
    assert (lsns.lsn_of(7), lsns.lsn_from(7), lsns.index_from(7)) == (7, 7, 7)
    lsns.forget_below(100)
    assert LsnMap([Span(5, 50, 2)]).lsn_from(9) == 52
    assert LsnMap([Span(5, 50, 2)]).index_from(60) == 7
