"""Replicas that belong to nobody are removed, and never one that belongs to somebody."""

from raftwood.logservice.hakeeper.commands import RemoveShard, Schedule, Scheduled
from raftwood.logservice.hakeeper.messages import (
    EPOCH_OF_REMOVED,
    Order,
    OrderKind,
    ShardReplicaReport,
)
from tests.kits.logservice.keeper import Keeper, report


def strangers(keeper: Keeper, told: ShardReplicaReport, ticks: int = 20) -> list[Order]:
    """Store 4 has this replica for a while; what is ordered of it."""
    for _ in range(ticks):
        keeper.tick()
        keeper.hear_all(3)
        keeper.store(4, told)
    return [order for order in keeper.plan() if order.kind is OrderKind.KILL_ZOMBIE]


def changed(keeper: Keeper) -> None:
    """Shard 1 is at epoch 9."""
    for store in (1, 2, 3):
        keeper.store(store, report(0, (1, 2, 3), leader=1), report(1, (1, 2, 3), leader=1, epoch=9))


def test_a_removed_replica_that_comes_back_is_killed_and_takes_nothing_down() -> None:
    """Users reported: a removed replica restarts as a zombie and takes HAKeeper down."""
    keeper = Keeper()
    keeper.running(4)
    changed(keeper)
    before = keeper.copy()
    zombie = report(1, (1, 2, 4), epoch=5, leader=4, term=1)
    (kill,) = strangers(keeper, zombie)
    assert (kill.to_store, kill.shard, kill.epoch) == (4, 1, 9)
    shard = keeper.state.shards[1]
    assert (shard.voters, shard.epoch) == (before.shards[1].voters, 9)
    assert shard.leader == 1
    keeper.schedule()
    assert [order.kind for order in keeper.store(4, zombie)] == [OrderKind.KILL_ZOMBIE]
    # The answer or its acknowledgement may be lost; that it is gone shows.
    assert keeper.store(4) == ()


def test_a_zombie_of_hakeeper_itself_is_killed() -> None:
    keeper = Keeper()
    keeper.running(4)
    for store in (1, 2, 3):
        keeper.store(store, report(0, (1, 2, 3), leader=1, epoch=6), report(1, (1, 2, 3), leader=1))
    (kill,) = strangers(keeper, report(0, (1, 2, 4), epoch=2, leader=4))
    assert (kill.to_store, kill.shard) == (4, 0)
    assert keeper.state.shards[0].leader == 1


def test_a_replica_at_an_equal_or_higher_epoch_is_not_killed() -> None:
    keeper = Keeper()
    keeper.running(4)
    changed(keeper)
    assert strangers(keeper, report(1, (1, 2, 4), epoch=9)) == []
    assert 4 in keeper.state.shards[1].conflicts


def test_a_replica_that_has_said_after_the_plan_that_it_is_a_member_is_not_killed() -> None:
    keeper = Keeper()
    keeper.running(4)
    changed(keeper)
    plan = strangers(keeper, report(1, (1, 2, 4), epoch=5))
    assert len(plan) == 1
    keeper.store(4, report(1, (1, 2, 4), epoch=9))
    assert keeper.tell(Schedule(1, keeper.state.tick, tuple(plan))) == Scheduled(0)
    assert keeper.state.stores[4].condemned == []


def test_a_replica_that_knows_that_it_is_out_is_killed() -> None:
    keeper = Keeper()
    keeper.running(4)
    changed(keeper)
    assert len(strangers(keeper, report(1, (1, 2, 3), epoch=9))) == 1


def test_a_replica_that_is_about_to_be_added_is_not_killed() -> None:
    keeper = Keeper()
    keeper.running(4)
    changed(keeper)
    for kind, to_store, store in (
        (OrderKind.START_REPLICA, 4, 0),
        (OrderKind.ADD_LEARNER, 1, 4),
    ):
        order = Order(0, kind, to_store=to_store, shard=1, store=store, epoch=9, expires_tick=1000)
        keeper.state.orders.clear()
        keeper.tell(Schedule(1, keeper.state.tick, (order,)))
        assert strangers(keeper, report(1), ticks=2) == []
        if kind is OrderKind.ADD_LEARNER:
            assert strangers(keeper, report(1)) == []


def test_nothing_is_killed_while_the_leader_is_silent() -> None:
    keeper = Keeper()
    keeper.running(4)
    changed(keeper)
    for _ in range(20):
        keeper.tick()
        keeper.hear_all(3, without=(1,))
        keeper.store(4, report(1, (1, 2, 4), epoch=5))
    assert OrderKind.KILL_ZOMBIE not in keeper.kinds()


def test_replicas_of_a_removed_shard_are_killed_and_unknown_ones_are_not() -> None:
    keeper = Keeper()
    keeper.running(4)
    keeper.tell(RemoveShard(1))
    (kill,) = strangers(keeper, report(1, (1, 2, 3), epoch=50))
    assert (kill.shard, kill.to_store, kill.epoch) == (1, 4, EPOCH_OF_REMOVED)
    assert strangers(keeper, report(77, (1, 2, 3), epoch=50)) == []


def test_a_condemned_replica_is_gone_before_its_store_gets_another() -> None:
    keeper = Keeper()
    keeper.running(4)
    changed(keeper)
    strangers(keeper, report(1, (1, 2, 4), epoch=5))
    keeper.schedule()
    order = Order(0, OrderKind.ADD_LEARNER, to_store=1, shard=1, store=4, epoch=9)
    before = len(keeper.state.orders)
    keeper.tell(Schedule(1, keeper.state.tick, (order,)))
    assert len(keeper.state.orders) == before
