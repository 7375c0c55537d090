"""Replicas and leaders are spread while all is well, and then it is quiet."""

import msgspec

from raftwood.logservice.hakeeper.commands import AddShard
from raftwood.logservice.hakeeper.messages import OrderKind
from tests.kits.logservice.keeper import SETTINGS, Keeper

SLOW = "disk-slow: a sync takes 900 ms on this store"


def with_shards(count: int, stores: int = 3) -> Keeper:
    """Shards on stores 1 to 3, all led by store 1."""
    keeper = Keeper(msgspec.structs.replace(SETTINGS, moves_every_ticks=1))
    keeper.running(3)
    for number in range(count - 1):
        keeper.tell(AddShard(f"more-{number}", 3, 0, "n"))
    keeper.schedule()
    keeper.hear_all()
    keeper.state.orders.clear()
    keeper.hear_all(stores)
    return keeper


def test_a_new_store_gets_replicas_one_at_a_time() -> None:
    keeper = with_shards(4, stores=4)
    start, add = keeper.plan()
    assert (start.kind, start.to_store) == (OrderKind.START_REPLICA, 4)
    assert (add.kind, add.store) == (OrderKind.ADD_LEARNER, 4)
    assert add.removed in (1, 2, 3)
    assert add.shard != 0
    keeper.schedule()
    assert keeper.state.shards[add.shard].move is not None
    assert keeper.plan() == []


def test_a_move_that_comes_to_nothing_is_forgotten() -> None:
    keeper = with_shards(4, stores=4)
    keeper.schedule()
    keeper.tick(keeper.settings.order_ticks)
    assert all(shard.move is None for shard in keeper.state.shards.values())


def test_leaders_are_spread() -> None:
    keeper = with_shards(4)
    (transfer,) = keeper.plan()
    assert (transfer.kind, transfer.to_store) == (OrderKind.TRANSFER_LEADER, 1)
    assert transfer.store in (2, 3)
    keeper.schedule()
    assert keeper.plan() == []


def test_leaders_are_spread_over_those_whose_disks_are_not_slow() -> None:
    keeper = with_shards(4)
    keeper.state.stores[2].alarms = (SLOW,)
    (transfer,) = keeper.plan()
    assert (transfer.to_store, transfer.store) == (1, 3)
    keeper.state.stores[3].alarms = ("disk-short: a disk is full", SLOW)
    assert keeper.plan() == []


def test_a_difference_of_one_is_left() -> None:
    keeper = with_shards(1)
    keeper.state.shards[1].leader = 2
    keeper.hear_all()
    assert keeper.plan() == []


def test_nothing_moves_while_a_store_is_down() -> None:
    keeper = with_shards(4)
    keeper.silence(3)
    assert keeper.plan() == []


def test_nothing_moves_while_a_store_is_silent_that_may_be_dead() -> None:
    # To let a dead store lead would keep the shard from taking anything for a while.
    keeper = with_shards(4)
    for _ in range(7):
        keeper.tick()
        keeper.hear_all(without=(3,))
    assert keeper.plan() == []
    keeper.hear_all()
    assert [order.kind for order in keeper.plan()] == [OrderKind.TRANSFER_LEADER]


def test_a_voter_leaves_a_failure_domain_that_it_shares() -> None:
    keeper = Keeper(msgspec.structs.replace(SETTINGS, moves_every_ticks=1))
    keeper.domains = {1: "a", 2: "a", 3: "b", 4: "c"}
    keeper.running(4)
    keeper.hear_all(4)
    add = keeper.plan()[-1]
    assert (add.kind, add.store) == (OrderKind.ADD_LEARNER, 4)
    assert add.removed in (1, 2)
