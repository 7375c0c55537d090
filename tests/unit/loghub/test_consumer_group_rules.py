"""Who of a consumer group has which shard, one step at a time."""

from collections.abc import Collection, Mapping

import pytest

from raftwood.loghub.model import Logstore
from raftwood.loghub.server.consumer_group_rules import (
    NOBODY,
    GroupFacts,
    GroupShardState,
    ShardFacts,
    ShardTenure,
    after_heartbeat,
    facts_of,
    shard_state,
    told,
)
from raftwood.loghub.shards import (
    begin_delete,
    begin_split,
    finish_creation,
    finish_delete,
    finish_hand_overs,
    with_first_shards,
)

Ranges = Mapping[int, tuple[str, str]]
FLAT: Ranges = {0: ("0", "4"), 1: ("4", "8"), 2: ("8", "c"), 3: ("c", "f")}


def facts(
    *alive: str, ranges: Ranges = FLAT, over: Collection[int] = (), is_ordered: bool = False
) -> GroupFacts:
    shards = {
        number: ShardFacts(number, begin, end, number in over)
        for number, (begin, end) in ranges.items()
    }
    return GroupFacts(shards, frozenset(), frozenset(alive), is_ordered)


def held_by(**shards: Collection[int]) -> dict[int, ShardTenure]:
    return {number: ShardTenure(name, name) for name, held in shards.items() for number in held}


def test_the_first_consumer_has_all_and_the_second_a_half() -> None:
    first = after_heartbeat({}, consumer="a", held=[], facts=facts("a"))
    assert told(first, "a") == [0, 1, 2, 3]
    second = after_heartbeat(first, consumer="b", held=[], facts=facts("a", "b"))
    assert (told(second, "a"), told(second, "b")) == ([0, 1], [])
    third = after_heartbeat(second, consumer="a", held=[0, 1], facts=facts("a", "b"))
    assert told(third, "b") == [2, 3]


def test_a_shard_in_transfer_goes_back_if_its_heir_dies() -> None:
    moving = {**held_by(a=[0, 1], b=[2]), 3: ShardTenure("a", "b")}
    after = after_heartbeat(moving, consumer="a", held=[0, 1, 3], facts=facts("a"))
    assert told(after, "a") == [0, 1, 2, 3]


def test_a_shard_in_transfer_goes_on_if_its_holder_dies() -> None:
    moving = {**held_by(a=[0], b=[1, 2]), 3: ShardTenure("a", "b")}
    after = after_heartbeat(moving, consumer="b", held=[1, 2], facts=facts("b"))
    assert told(after, "b") == [0, 1, 2, 3]


def test_a_shard_in_transfer_gets_another_heir_at_no_cost() -> None:
    moving = {0: ShardTenure("a", "b"), **held_by(b=[1, 2, 3])}
    after = after_heartbeat(moving, consumer="a", held=[0], facts=facts("a", "b"))
    assert after[0] == ShardTenure("a", "a"), "its holder is the one that has too little"


def test_one_that_is_at_work_on_what_nobody_has_keeps_it() -> None:
    after = after_heartbeat(held_by(dead=[0, 1]), consumer="b", held=[3], facts=facts("a", "b"))
    assert after[3] == ShardTenure("b", "b")
    assert (len(told(after, "a")), len(told(after, "b"))) == (2, 2)


def test_what_is_over_is_drained_and_given_to_nobody() -> None:
    known = facts("a", "b", over=[0])
    after = after_heartbeat(held_by(a=[0, 1], b=[2, 3]), consumer="b", held=[2, 3], facts=known)
    assert after[0] == ShardTenure("a", NOBODY)
    assert shard_state(after, known.shards[0], known) is GroupShardState.OVER
    ended = after_heartbeat(after, consumer="a", held=[1], facts=known)
    assert 0 not in ended


SPLIT_TWICE: Ranges = {0: ("0", "f"), 1: ("0", "8"), 2: ("8", "f"), 3: ("0", "4"), 4: ("4", "8")}


@pytest.mark.parametrize(
    ("over", "deleted", "waiting"),
    [
        ([], [], [1, 2, 3, 4]),
        ([0], [], [3, 4]),
        ([0, 1], [], []),
        ([], [1], [2, 3, 4]),
        ([], [0], [3, 4]),
        ([], [0, 1], []),
    ],
)
def test_children_wait_for_all_that_held_their_keys(
    over: list[int], deleted: list[int], waiting: list[int]
) -> None:
    ranges = {number: each for number, each in SPLIT_TWICE.items() if number not in deleted}
    known = facts("a", ranges=ranges, over=over, is_ordered=True)
    after = after_heartbeat({}, consumer="a", held=[], facts=known)
    states = {number: shard_state(after, each, known) for number, each in known.shards.items()}
    assert [each for each, state in states.items() if state is GroupShardState.WAIT] == waiting
    assert told(after, "a") == [each for each in ranges if each not in (*waiting, *over)]
    free = facts("a", ranges=ranges, over=over, is_ordered=False)
    assert GroupShardState.WAIT not in [
        shard_state({}, each, free) for each in free.shards.values()
    ]


def test_a_view_that_is_behind_takes_nothing_away() -> None:
    before = finish_creation(with_first_shards(Logstore(project="p", name="s"), ["x"], now_s=0))
    during = begin_split(before, 0, None, ("y", "z"), now_s=0)
    after = finish_hand_overs(during, {0: 5})
    tenures = held_by(a=[1], b=[2])
    for view in (before, during, after):
        known = facts_of(view, tenures, over=[0], alive=["b"], is_ordered=True)
        assert known.gone == frozenset()
        is_known = view is after
        changed = after_heartbeat(tenures, consumer="b", held=[2], facts=known)
        assert changed[1] == (ShardTenure("b", "b") if is_known else ShardTenure("a", "a"))


def test_what_is_deleted_is_drained() -> None:
    split = begin_split(
        finish_creation(with_first_shards(Logstore(project="p", name="s"), ["x"], now_s=0)),
        *(0, None, ("y", "z")),
        now_s=0,
    )
    deleting = begin_delete(finish_hand_overs(split, {0: 5}), 0)
    for view in (deleting, finish_delete(deleting, [0])):
        tenures = held_by(a=[0, 1, 2])
        known = facts_of(view, tenures, over=[], alive=["a"], is_ordered=True)
        assert known.gone == {0}
        after = after_heartbeat(tenures, consumer="a", held=[0, 1, 2], facts=known)
        assert told(after, "a") == [1, 2]
        assert after[0] == ShardTenure("a", NOBODY)
