"""However shards are split, merged and deleted, and in whatever order it is finished: each key
belongs to one shard that can be written, and every shard knows whom it follows."""

import random
from itertools import pairwise

import pytest

from raftwood.loghub.errors import InvalidParameter, ShardNotFound, ShardReadonly
from raftwood.loghub.model import KEY_END, KEY_FIRST, SHARDS_MAX, Logstore, ShardStatus
from raftwood.loghub.shards import (
    begin_delete,
    begin_merge,
    begin_split,
    checked_key,
    contains,
    covers_all,
    even_ranges,
    finish_creation,
    finish_delete,
    finish_hand_overs,
    hash_key,
    is_settled,
    lineage_of_key,
    middle,
    shard_of_key,
    visible_shard,
    with_first_shards,
    writable_shards,
)


def logstore(shards: int) -> Logstore:
    empty = Logstore(project="p", name="s")
    return finish_creation(
        with_first_shards(empty, [f"log-{number}" for number in range(shards)], now_s=1)
    )


def check(found: Logstore) -> None:
    writable = writable_shards(found)
    assert covers_all([(each.begin, each.end) for each in writable])
    for key in (KEY_FIRST, KEY_END, "7" * 32, hash_key(b"k")):
        owners = [each for each in writable if contains(each.begin, each.end, key)]
        assert owners == [shard_of_key(found, key)]
        *former, last = lineage_of_key(found, key)
        assert last == owners[0]
        assert all(each.status in (ShardStatus.READONLY, ShardStatus.DELETING) for each in former)
        for each, following in pairwise([*former, last]):
            # Who took over is the next, unless it has gone already.
            taken = [found.shard(child) for child in each.children]
            assert following in taken or not any(
                each and contains(each.begin, each.end, key) for each in taken
            )
    by_id = {each.id: each for each in found.shards}
    assert len(by_id) == len(found.shards) <= SHARDS_MAX
    assert len({each.log for each in found.shards}) == len(found.shards)
    for each in found.shards:
        assert (each.end_position is not None) == (
            each.status in (ShardStatus.READONLY, ShardStatus.DELETING)
        )
        for child in each.children:
            assert child not in by_id or each.id in by_id[child].parents
        if each.status is ShardStatus.CREATING:
            assert all(by_id[parent].status is ShardStatus.SEALING for parent in each.parents)


@pytest.mark.parametrize("seed", range(40))
def test_the_writable_shards_always_share_all_keys(seed: int) -> None:
    rng = random.Random(seed)
    found = logstore(rng.randint(1, 5))
    made = 0
    for step in range(150):
        shard = rng.randrange(found.next_shard)
        before = found
        try:
            match rng.randrange(6):
                case 0 | 1:
                    made += 2
                    key = f"{rng.getrandbits(128):032x}" if rng.random() < 0.5 else None
                    logs = (f"new-{made}", f"new-{made + 1}")
                    found = begin_split(found, shard, key, logs, now_s=step)
                case 2:
                    made += 2
                    found = begin_merge(found, shard, f"new-{made}", now_s=step)
                case 3 | 4:
                    sealing = [e.id for e in found.shards if e.status is ShardStatus.SEALING]
                    some = {each: 7 for each in sealing if rng.random() < 0.7}
                    found = finish_hand_overs(found, some)
                case _:
                    found = begin_delete(found, shard)
                    if rng.random() < 0.7:
                        found = finish_delete(found, [shard])
        except (InvalidParameter, ShardNotFound, ShardReadonly):
            assert found is before
        check(found)
    sealing = [each.id for each in found.shards if each.status is ShardStatus.SEALING]
    found = finish_hand_overs(found, dict.fromkeys(sealing, 9))
    doomed = [each.id for each in found.shards if each.status is ShardStatus.DELETING]
    found = finish_delete(found, doomed)
    check(found)
    assert is_settled(found)


def test_a_merge_waits_for_the_ends_of_both_parents() -> None:
    found = begin_merge(logstore(2), 0, "joined", now_s=1)
    half = finish_hand_overs(found, {0: 5})
    assert half == found
    with pytest.raises(ShardNotFound):
        visible_shard(half, 2)
    done = finish_hand_overs(found, {0: 5, 1: 6})
    assert [each.ends_at for each in done.shards] == [5, 6, None]
    assert done.shards[2].parent_ends == ("5", "6")
    assert finish_hand_overs(done, {0: 50, 1: 60}) == done


def test_shards_of_others_that_are_being_made_are_left_alone() -> None:
    found = begin_split(logstore(2), 0, None, ("a", "b"), now_s=1)
    both = begin_split(found, 1, None, ("c", "d"), now_s=1)
    one = finish_hand_overs(both, {0: 5})
    assert [each.status.value for each in one.shards] == [
        "readonly",
        "sealing",
        "readwrite",
        "readwrite",
        "creating",
        "creating",
    ]
    assert finish_creation(one) == one


def test_there_is_a_limit_to_shards() -> None:
    found = logstore(SHARDS_MAX - 1)
    with pytest.raises(InvalidParameter, match="delete some"):
        begin_split(found, 3, None, ("a", "b"), now_s=1)


def test_ranges_are_cut_evenly_and_keys_are_checked() -> None:
    for count in (1, 2, 3, 7, 128):
        ranges = even_ranges(count)
        assert covers_all(ranges)
        sizes = [int(end, 16) - int(begin, 16) for begin, end in ranges]
        assert max(sizes) - min(sizes) <= 1
    assert middle(KEY_FIRST, KEY_END) == "8" + "0" * 31
    assert not covers_all([(KEY_FIRST, "8" * 32), ("9" * 32, KEY_END)])
    assert checked_key("F" * 32) == KEY_END
    for bad in ("", "f" * 31, "g" * 32, "f" * 33, "../" + "f" * 29):
        with pytest.raises(InvalidParameter):
            checked_key(bad)
