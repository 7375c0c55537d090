"""Plans are the same for all, move as little as can be, and end."""

import random
from collections import Counter

import pytest
from msgspec import structs

from raftwood.loghub.consumer.lease_plan import (
    LeaseMove,
    Planner,
    Situation,
    is_ready,
    plan_by_bytes,
    plan_by_count,
)
from raftwood.loghub.consumer.leases import NOBODY, SHARD_END, ShardLease


def _held(*sizes: int, free: int = 0, dead: int = 0) -> Situation:
    """Workers that hold so many; some shards are free, and some belong to one not yet expired."""
    owners = [f"p{number}" for number, size in enumerate(sizes) for _ in range(size)]
    owners += [NOBODY] * free + ["dead"] * dead
    leases = {
        f"{number:04}": ShardLease(f"{number:04}", 5, owner, owner, owner, owner)
        for number, owner in enumerate(owners)
    }
    live = {f"p{number}": f"w{number}" for number in range(len(sizes))}
    vacant = {shard for shard, lease in leases.items() if lease.lease_process == NOBODY}
    return Situation(leases, live, vacant)


def _after(situation: Situation, moves: list[LeaseMove]) -> Situation:
    leases = dict(situation.leases)
    for move in moves:
        assert leases[move.shard].lease_process == move.source
        leases[move.shard] = structs.replace(leases[move.shard], lease_process=move.target)
    free = [shard for shard in situation.free if leases[shard].lease_process == NOBODY]
    return Situation(leases, situation.live, free)


def _sizes(situation: Situation) -> list[int]:
    found = Counter(lease.lease_process for lease in situation.leases.values())
    return sorted(found[process] for process in situation.live)


def _loads(situation: Situation) -> list[float]:
    loads = dict.fromkeys(situation.live, 0.0)
    for lease in situation.leases.values():
        loads[lease.lease_process] += lease.bytes_per_s
    return sorted(loads.values())


@pytest.mark.parametrize("seed", range(300))
def test_one_round_balances_with_the_fewest_moves_and_the_next_moves_nothing(seed: int) -> None:
    source = random.Random(seed)
    sizes = [source.choice((0, source.randint(0, 30))) for _ in range(source.randint(1, 12))]
    situation = _held(*sizes, free=source.choice((0, source.randint(0, 20))))
    moves = plan_by_count(situation)
    after = _after(situation, moves)
    assert max(_sizes(after)) - min(_sizes(after)) <= 1
    assert plan_by_count(after) == []
    # The fewest: all that is free, and whatever is above the largest quotas there can be.
    floor, larger = divmod(len(situation.leases), len(sizes))
    quotas = sorted((floor + (rank < larger) for rank in range(len(sizes))), reverse=True)
    above = sum(
        max(0, size - quota)
        for size, quota in zip(sorted(sizes, reverse=True), quotas, strict=True)
    )
    assert len(moves) == above + len(situation.free)
    for move in moves:
        if move.source != NOBODY:
            before = Counter(lease.lease_process for lease in situation.leases.values())
            assert before[move.source] - before[move.target] >= 2


@pytest.mark.parametrize("planner", [plan_by_count, plan_by_bytes])
@pytest.mark.parametrize("sizes", [(0, 1), (1, 2), (0, 0, 0), (2, 5, 3)])
def test_a_free_shard_does_not_go_to_the_live_worker_that_hangs_in_it(
    planner: Planner, sizes: tuple[int, ...]
) -> None:
    situation = _held(*sizes, free=1)
    (shard,) = situation.free
    leases = dict(situation.leases)
    leases[shard] = structs.replace(leases[shard], consumer_owner="w0", consumer_process="p0")
    moves = planner(structs.replace(situation, leases=leases))
    (target,) = (move.target for move in moves if move.shard == shard)
    assert target != "p0"
    alone = structs.replace(situation, leases=leases, live={"p0": "w0"})
    assert LeaseMove(shard, NOBODY, "p0") in planner(alone)


def test_a_difference_of_one_moves_nothing() -> None:
    assert plan_by_count(_held(3, 4, 3, 4)) == []
    assert len(plan_by_count(_held(3, 5))) == 1


def test_what_the_dead_hold_is_counted_so_that_nobody_steals_for_it() -> None:
    assert plan_by_count(_held(10, 10, dead=10)) == []
    assert plan_by_count(_held(14, 6, dead=4)) == [
        LeaseMove("0000", "p0", "p1"),
        LeaseMove("0001", "p0", "p1"),
    ]


def test_all_workers_work_out_the_same_plan_whatever_order_they_saw_things_in() -> None:
    situation = _held(20, 3, 0, free=4)
    shards = list(situation.leases)
    random.Random(1).shuffle(shards)
    mixed = Situation(
        {shard: situation.leases[shard] for shard in shards},
        situation.live,
        sorted(situation.free, reverse=True),
    )
    assert plan_by_count(mixed) == plan_by_count(situation)
    assert plan_by_bytes(mixed) == plan_by_bytes(situation)


def test_free_leases_go_back_to_a_worker_of_the_same_name() -> None:
    situation = _held(2, 0, 0)
    leases = {
        shard: structs.replace(
            lease, lease_owner="w2", lease_process="before", consumer_process="before"
        )
        for shard, lease in situation.leases.items()
    }
    moves = plan_by_count(Situation(leases, situation.live, set(leases)))
    assert [move.target for move in moves] == ["p2", "p0"]


@pytest.mark.parametrize("planner", [plan_by_count, plan_by_bytes])
def test_what_has_expired_does_not_wait_for_a_newcomer_that_cannot_know_it(
    planner: Planner,
) -> None:
    situation = _held(2, 2, 0, dead=2)
    expired = {shard for shard, each in situation.leases.items() if each.lease_process == "dead"}
    situation = structs.replace(situation, free=expired, newcomers=["p2"])
    assert sorted(move.target for move in planner(situation)) == ["p0", "p1"]
    # Once it can know, they are its share; and what nobody has it can take at once.
    known = structs.replace(situation, newcomers=())
    assert [move.target for move in planner(known)] == ["p2", "p2"]
    vacant = structs.replace(_held(1, 1, 0, free=1), newcomers=["p2"])
    assert [move.target for move in planner(vacant)] == ["p2"]


def test_what_changes_hands_already_is_stolen_last() -> None:
    situation = _held(4, 0)
    leases = dict(situation.leases)
    leases["0000"] = structs.replace(leases["0000"], consumer_process="p9")
    moves = plan_by_count(Situation(leases, situation.live, ()))
    assert [move.shard for move in moves] == ["0001", "0002"]


def test_a_child_is_ready_when_all_parents_ended_or_are_gone() -> None:
    child = ShardLease("c", parents=("a", "b"))
    ended = ShardLease("a", checkpoint=SHARD_END)
    assert not is_ready(child, {"a": ended, "b": ShardLease("b")})
    assert is_ready(child, {"a": ended})
    assert not is_ready(ended, {})


def test_nobody_alive_is_no_plan() -> None:
    situation = _held(free=3)
    assert plan_by_count(situation) == []
    assert plan_by_bytes(situation) == []


@pytest.mark.parametrize("seed", range(100))
def test_by_bytes_the_loads_come_close_and_then_nothing_moves(seed: int) -> None:
    source = random.Random(seed)
    sizes = [source.randint(0, 40) for _ in range(source.randint(2, 8))]
    situation = _held(*sizes, free=source.randint(60, 80))
    leases = {
        shard: structs.replace(lease, bytes_per_s=source.choice((10.0, 100.0, 400.0)))
        for shard, lease in situation.leases.items()
    }
    situation = Situation(leases, situation.live, situation.free)
    rounds = 0
    while moves := plan_by_bytes(situation):
        situation = _after(situation, moves)
        rounds += 1
        assert rounds <= 3
    loads = _loads(situation)
    average = sum(loads) / len(loads)
    # No shard is lighter than the difference that is left.
    assert loads[-1] <= average * 1.1 + 400
