"""The rules of planning: every record once, children after parents, whatever happens meanwhile."""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from raftwood.base.errors import InvalidInput
from raftwood.base.position import Position
from raftwood.loghub.errors import RecordsFreed
from raftwood.pipeline.offsets import (
    RowAdmission,
    ShardExtent,
    ShardRange,
    StreamOffset,
    advanced,
    available,
    check_losses,
    divided,
    initial_offset,
    losses,
    ranges,
)
from tests.kits.pipeline.logstore_model import ModelLogstore


def view(
    number: int,
    first: int,
    following: int,
    *,
    parents: tuple[int, ...] = (),
    parent_ends: tuple[int, ...] = (),
    is_ended: bool = False,
) -> ShardExtent:
    return ShardExtent(
        id=number,
        parents=parents,
        parent_ends=tuple(map(Position, parent_ends)),
        first=Position(first),
        next=Position(following),
        is_ended=is_ended,
    )


def at(*, ended: tuple[int, ...] = (), **positions: int) -> StreamOffset:
    return StreamOffset(
        positions={int(name[1:]): Position(place) for name, place in positions.items()},
        ended=frozenset(ended),
    )


class Query:
    """A query over the model: plans, reads, and is killed and started again."""

    def __init__(self, logstore: ModelLogstore, random: Random) -> None:
        self.logstore = logstore
        self.random = random
        self.offset = self.kept(initial_offset(logstore.views(), {}))
        self.seen: list[list[tuple[int, int]]] = []
        self.caps: dict[int, Position] | None = None

    def kept(self, offset: StreamOffset) -> StreamOffset:
        return StreamOffset.from_json(json.loads(json.dumps(offset.to_json())))

    def plan(self, rows_max: int | None) -> StreamOffset:
        views = self.logstore.views()
        wanted = available(self.offset, views, caps=self.caps)
        ends = {shard: each.end for shard, each in wanted.items()}
        if rows_max is not None:
            admission = RowAdmission(wanted, rows_max)
            while (asked := admission.wanted()) is not None:
                steps, following = self.logstore.steps(asked, self.random.randint(1, 3))
                admission.found(asked.shard, steps, following)
            ends = admission.ends()
        return self.kept(advanced(self.offset, views, ends, caps=self.caps))

    def run(self, rows_max: int | None, partitions_min: int) -> bool:
        end = self.plan(rows_max)
        if end.to_json() == self.offset.to_json():
            return False
        wanted = ranges(self.offset, end)
        while self.random.random() < 0.3:  # killed: the same offsets again, while logs grow
            self.logstore.change()
            assert ranges(self.offset, end) == wanted
        parts = divided(wanted, partitions_min)
        self.seen.append([record for part in parts for record in self.logstore.read(part)])
        if rows_max is not None and len(self.seen[-1]) > rows_max:
            batches = [
                position
                for part in parts
                for position in self.logstore.shards[part.shard].batches
                if part.begin <= position < part.end
            ]
            assert len(batches) == 1, "more rows than allowed, and not for one large batch"
        self.offset = end
        return True


def check(query: Query, logstore: ModelLogstore, numbers: range) -> None:
    read = [number for batch in query.seen for _, number in batch]
    assert sorted(read) == list(numbers)
    last: dict[int, tuple[int, int]] = {}
    place = {number: index for index, batch in enumerate(query.seen) for _, number in batch}
    for number, key in sorted((number, key) for batch in query.seen for key, number in batch):
        at_batch, shard = place[number], logstore.where[number]
        if key in last:
            earlier_batch, earlier_shard = last[key]
            assert at_batch >= earlier_batch
            if shard != earlier_shard:
                assert at_batch > earlier_batch, "a child was read beside its parent"
        last[key] = at_batch, shard


@given(
    seed=some.integers(0, 1 << 32),
    shards=some.integers(1, 4),
    rows_max=some.none() | some.integers(1, 12),
    partitions_min=some.integers(1, 6),
)
def test_every_record_is_read_once_and_in_the_order_of_its_key(
    seed: int, shards: int, rows_max: int | None, partitions_min: int
) -> None:
    random = Random(seed)
    logstore = ModelLogstore(random, shards)
    query = Query(logstore, random)
    for _ in range(40):
        if random.random() < 0.7:
            logstore.change()
        else:
            query.run(rows_max, partitions_min)
    while query.run(rows_max, partitions_min):
        pass
    check(query, logstore, range(logstore.records))


@given(seed=some.integers(0, 1 << 32), rows_max=some.none() | some.integers(1, 12))
def test_a_query_over_what_is_there_reads_that_and_ends_while_the_log_grows(
    seed: int, rows_max: int | None
) -> None:
    random = Random(seed)
    logstore = ModelLogstore(random, 2)
    for _ in range(30):
        logstore.change()
    query = Query(logstore, random)
    count = logstore.records
    query.caps = {each.id: each.next for each in logstore.views()}
    runs = 0
    while query.run(rows_max, 1):
        logstore.change()
        runs += 1
        assert runs < 1000
    check(query, logstore, range(count))
    query.caps = None
    while query.run(rows_max, 1):
        pass
    check(query, logstore, range(logstore.records))


def test_a_child_waits_for_all_of_its_parents() -> None:
    shards = [
        view(0, 1, 5, is_ended=True),
        view(1, 1, 9, is_ended=True),
        view(2, 1, 3, parents=(0, 1)),
    ]
    begun = initial_offset(shards, {})
    assert set(available(begun, shards)) == {0, 1}
    one = advanced(begun, shards, {0: Position(5), 1: Position(8)})
    assert set(available(one, shards)) == {1}
    both = advanced(one, shards, {1: Position(9)})
    assert both.ended == {0, 1}
    assert set(available(both, shards)) == {2}


def test_parents_that_were_gone_at_the_start_are_not_waited_for() -> None:
    shards = [view(4, 1, 3, parents=(0,))]
    assert set(available(initial_offset(shards, {}), shards)) == {4}


def test_a_new_query_from_the_end_reads_only_what_comes() -> None:
    shards = [view(0, 1, 5, is_ended=True), view(1, 1, 3, parents=(0,))]
    begun = initial_offset(shards, {0: Position(5), 1: Position(3)})
    assert begun.ended == {0}
    assert available(begun, shards) == {}
    assert advanced(begun, shards, {}) == begun


def test_truncated_positions_are_named_and_counted_once() -> None:
    shards = [view(0, 7, 9)]
    start = at(s0=3)
    found = losses(start, shards)
    with pytest.raises(RecordsFreed, match="positions 3 to 7 of shard 0"):
        check_losses(found, fails=True)
    check_losses(found, fails=False)
    after = advanced(start, shards, {0: Position(9)})
    assert after.skipped == 1
    assert losses(after, shards) == []


def test_a_shard_that_is_gone_lets_its_children_begin() -> None:
    shards = [view(1, 1, 3, parents=(0,))]
    start = at(s0=3)
    assert [str(each) for each in losses(start, shards)] == ["shard 0 from position 3 on"]
    noted = advanced(start, shards, {})
    assert (noted.skipped, noted.ended) == (1, frozenset({0}))
    assert available(noted, shards) == {1: ShardRange(1, Position(1), Position(3))}
    assert losses(noted, shards) == []


def test_a_shard_that_was_read_to_its_end_before_it_went_is_no_loss() -> None:
    shards = [view(1, 1, 3, parents=(0,), parent_ends=(5,)), view(2, 1, 1, parents=(0,))]
    assert [each.shard for each in losses(at(s0=4), shards)] == [0]
    start = at(s0=5)
    for caps in (None, {1: Position(3), 2: Position(1)}):
        assert losses(start, shards, caps=caps) == []
        noted = advanced(start, shards, {}, caps=caps)
        assert (noted.skipped, noted.ended) == (0, frozenset({0}))
        assert set(available(noted, shards, caps=caps)) == {1}


def test_a_shard_that_came_and_went_between_two_looks_is_a_loss() -> None:
    shards = [view(0, 1, 4, is_ended=True), view(3, 1, 3, parents=(1,))]
    start = at(s0=4, ended=(0,))
    assert [each.shard for each in losses(start, shards)] == [1]
    noted = advanced(start, shards, {})
    assert noted.skipped == 1
    assert losses(noted, shards) == []


def test_a_shard_that_is_gone_is_a_loss_for_a_query_over_what_is_there_as_well() -> None:
    shards = [view(1, 1, 3, parents=(0,))]
    caps = {1: Position(3)}
    start = at(s0=3, s1=1)
    assert [str(each) for each in losses(start, shards, caps=caps)] == [
        "shard 0 from position 3 on"
    ]
    noted = advanced(start, shards, {}, caps=caps)
    assert (noted.skipped, noted.ended) == (1, frozenset({0}))
    assert available(noted, shards, caps=caps) == {1: ShardRange(1, Position(1), Position(3))}
    # One that went after it was read as far as it is to be is the next query's concern.
    assert losses(start, shards, caps={0: Position(3), **caps}) == []


def test_an_offset_says_into_how_many_parts_the_micro_batch_before_it_was_cut() -> None:
    shards = [view(0, 1, 9)]
    planned = StreamOffset(positions={0: Position(1)}, partitions_min=3)
    found = StreamOffset.from_json(json.loads(json.dumps(planned.to_json())))
    assert found == planned
    assert advanced(found, shards, {}) == found
    assert "partitions" not in StreamOffset(positions={0: Position(1)}).to_json()


def test_what_is_freed_behind_the_last_target_does_not_keep_a_query_running() -> None:
    shards = [view(0, 7, 9)]
    caps = {0: Position(5)}
    start = at(s0=3)
    first = advanced(start, shards, {0: Position(5)}, caps=caps)
    assert first.positions == {0: 5}
    assert advanced(first, shards, {}, caps=caps) == first


@given(sizes=some.lists(some.integers(1, 40), min_size=1, max_size=5), count=some.integers(1, 30))
def test_divided_ranges_cover_the_same_positions(sizes: list[int], count: int) -> None:
    wanted = [
        ShardRange(shard, Position(100), Position(100 + size)) for shard, size in enumerate(sizes)
    ]
    parts = divided(wanted, count)
    assert len(parts) >= min(count, sum(sizes))
    covered = [(each.shard, place) for each in parts for place in range(each.begin, each.end)]
    assert covered == [
        (each.shard, place) for each in wanted for place in range(each.begin, each.end)
    ]


def test_an_offset_of_another_source_is_refused() -> None:
    for found in ({}, {"shards": {"0": 5}, "ended": [], "skipped": 0}, {"shards": 3}):
        with pytest.raises(InvalidInput):
            StreamOffset.from_json(found)
