"""How members are replaced, added and removed."""

import pytest

from raftwood.logservice.hakeeper.commands import (
    AddShard,
    DrainStore,
    KeeperDone,
    Schedule,
    Scheduled,
)
from raftwood.logservice.hakeeper.messages import AlarmKind, FinishedOrder, Order, OrderKind
from raftwood.logservice.hakeeper.queries import find_alarms
from tests.kits.logservice.keeper import Keeper, report

BOTH = (0, 1)
SLOW = "disk-slow: a sync takes 900 ms on this store"


def of_shard(keeper: Keeper, shard: int = 1) -> list[Order]:
    return [order for order in keeper.plan() if order.shard == shard]


def alarms(keeper: Keeper) -> set[AlarmKind]:
    return {alarm.kind for alarm in find_alarms(keeper.state, keeper.settings)}


def test_a_healthy_cluster_is_left_alone() -> None:
    keeper = Keeper()
    keeper.running()
    for _ in range(30):
        keeper.tick()
        keeper.hear_all()
        assert keeper.plan() == []
    assert alarms(keeper) == set()


def test_a_dead_store_is_replaced_by_a_learner_that_has_caught_up() -> None:
    keeper = Keeper()
    keeper.running(4)
    keeper.silence(3, known=4)
    start, add = of_shard(keeper)
    assert (start.kind, start.to_store) == (OrderKind.START_REPLICA, 4)
    assert (add.kind, add.to_store, add.store) == (OrderKind.ADD_LEARNER, 1, 4)
    keeper.schedule()
    assert of_shard(keeper) == []

    def hear(lag: int) -> None:
        told = report(1, (1, 2, 3), leader=1, epoch=7, learners=(4,), lagging={4: lag, 3: 99})
        keeper.store(1, report(0, (1, 2, 3), leader=1), told)
        keeper.store(2, report(0, (1, 2, 3), leader=1), told)
        keeper.store(4, told)

    hear(lag=500)
    keeper.state.orders.clear()
    assert of_shard(keeper) == []
    hear(lag=3)
    (promote,) = of_shard(keeper)
    assert promote.kind is OrderKind.ADD_VOTER
    assert (promote.store, promote.removed, promote.epoch) == (4, 3, 7)


def test_a_store_that_returns_in_time_keeps_its_place() -> None:
    keeper = Keeper()
    keeper.running(4)
    keeper.silence(3, known=4)
    told = report(1, (1, 2, 3), leader=1, epoch=7, learners=(4,))
    for store in (1, 2, 3):
        keeper.store(store, report(0, (1, 2, 3), leader=1), told)
    keeper.store(4, told)
    (remove,) = of_shard(keeper)
    assert (remove.kind, remove.store) == (OrderKind.REMOVE_MEMBER, 4)


def test_without_a_spare_store_a_dead_one_is_waited_for() -> None:
    keeper = Keeper()
    keeper.running()
    keeper.silence(3)
    assert keeper.plan() == []
    assert AlarmKind.TOO_FEW_STORES in alarms(keeper)
    assert AlarmKind.STORE_DOWN in alarms(keeper)


def test_a_shard_that_lost_its_quorum_is_alarmed_and_left_alone() -> None:
    keeper = Keeper()
    keeper.running(5)
    keeper.silence(2, 3, known=5)
    keeper.store(1, report(0, (1, 2, 3)), report(1, (1, 2, 3)))
    assert keeper.plan() == []
    assert AlarmKind.LOST_QUORUM in alarms(keeper)


def test_a_shard_without_leader_is_alarmed() -> None:
    keeper = Keeper()
    keeper.running(4)
    for _ in range(keeper.settings.leaderless_ticks + 1):
        keeper.tick()
        for store in (1, 2, 3):
            keeper.store(store, report(0, (1, 2, 3), leader=1), report(1, (1, 2, 3)))
    assert of_shard(keeper) == []
    assert AlarmKind.LEADERLESS in alarms(keeper)


def test_a_member_without_its_replica_is_started_again() -> None:
    keeper = Keeper()
    keeper.running()
    keeper.store(3, report(0, (1, 2, 3), leader=1))
    (start,) = keeper.plan()
    assert (start.kind, start.to_store, start.shard) == (OrderKind.START_REPLICA, 3, 1)


def test_a_voter_that_lost_its_data_is_replaced_where_a_store_is_free() -> None:
    keeper = Keeper()
    keeper.running(4)
    keeper.incarnations[3] = "b"
    keeper.store(3)
    assert [order.kind for order in of_shard(keeper)] == [
        OrderKind.START_REPLICA,
        OrderKind.ADD_LEARNER,
    ]
    assert {order.store for order in of_shard(keeper)} == {0, 4}


def test_a_voter_that_lost_its_data_is_removed_and_added_anew_where_none_is() -> None:
    keeper = Keeper()
    keeper.running()
    keeper.incarnations[3] = "b"
    keeper.store(3)
    (remove,) = of_shard(keeper)
    assert (remove.kind, remove.store) == (OrderKind.REMOVE_MEMBER, 3)
    for store in (1, 2):
        keeper.store(
            store, report(0, (1, 2), leader=1, epoch=4), report(1, (1, 2), leader=1, epoch=4)
        )
    assert keeper.state.shards[1].lost == []
    assert [order.kind for order in of_shard(keeper)] == [
        OrderKind.START_REPLICA,
        OrderKind.ADD_LEARNER,
    ]


def test_a_joint_change_is_waited_for() -> None:
    keeper = Keeper()
    keeper.running(4)
    keeper.silence(3, known=4)
    told = report(1, (1, 2, 4), leader=1, epoch=7, is_joint=True)
    for store in (1, 2, 4):
        keeper.store(store, report(0, (1, 2, 3), leader=1), told)
    assert of_shard(keeper) == []


def test_a_voter_that_stopped_within_a_joint_change_is_started() -> None:
    """Else nobody may lead, and the change never ends."""
    keeper = Keeper()
    keeper.running(4)
    hakeeper = report(0, (1, 2, 3), leader=1)
    told = report(1, (1, 2, 4), leader=0, epoch=7, is_joint=True)
    keeper.store(4, told)
    keeper.store(2, hakeeper)
    assert keeper.schedule() == 1
    (start,) = keeper.state.orders.values()
    assert (start.kind, start.to_store, start.shard) == (OrderKind.START_REPLICA, 2, 1)


def test_who_may_be_leaving_by_a_joint_change_is_not_started_anew() -> None:
    keeper = Keeper()
    keeper.running(4)
    keeper.store(4, report(1, (1, 2, 4), leader=0, epoch=7, is_joint=True))
    keeper.store(3, report(0, (1, 2, 3), leader=1))
    start = Order(0, OrderKind.START_REPLICA, to_store=3, shard=1, expires_tick=9)
    assert keeper.tell(Schedule(1, keeper.state.tick, (start,))) == Scheduled(0)


def test_a_replica_with_a_problem_is_left_to_its_store() -> None:
    keeper = Keeper()
    keeper.running(4)
    keeper.store(3, report(0, (1, 2, 3), leader=1), report(1, problem="damaged: being repaired"))
    assert keeper.plan() == []
    assert AlarmKind.REPLICA_PROBLEM in alarms(keeper)


@pytest.mark.parametrize("leader", [1, 3])
def test_a_draining_store_hands_its_leaders_over_and_is_replaced(leader: int) -> None:
    keeper = Keeper()
    keeper.running(4)
    keeper.state.shards[1].leader = leader
    keeper.hear_all(4)
    keeper.tell(DrainStore(3, is_draining=True))
    orders = of_shard(keeper)
    if leader == 3:
        assert [order.kind for order in orders] == [OrderKind.TRANSFER_LEADER]
        assert orders[0].store in (1, 2)
        return
    assert [order.kind for order in orders] == [OrderKind.START_REPLICA, OrderKind.ADD_LEARNER]
    told = report(1, (1, 2, 3), leader=1, epoch=7, learners=(4,))
    for store in (1, 2, 3, 4):
        keeper.store(store, report(0, (1, 2, 3), leader=1), told)
    (promote,) = of_shard(keeper)
    assert (promote.kind, promote.store, promote.removed) == (OrderKind.ADD_VOTER, 4, 3)


@pytest.mark.parametrize(("slow", "best"), [((1,), 2), ((2,), 1), ((1, 2), 1)])
def test_a_draining_store_hands_over_to_a_slow_disk_only_where_there_is_no_other(
    slow: tuple[int, ...], best: int
) -> None:
    keeper = Keeper()
    keeper.running(4)
    keeper.state.shards[1].leader = 3
    keeper.hear_all(4)
    for store in slow:
        keeper.state.stores[store].alarms = (SLOW,)
    keeper.tell(DrainStore(3, is_draining=True))
    (transfer,) = of_shard(keeper)
    assert (transfer.kind, transfer.store) == (OrderKind.TRANSFER_LEADER, best)


def test_neither_vote_nor_lead_goes_to_a_store_that_is_silent() -> None:
    keeper = Keeper()
    keeper.running(4)
    keeper.silence(3, known=4)
    told = report(1, (1, 2, 3), leader=1, epoch=7, learners=(4,))
    for store in (1, 2, 4):
        keeper.store(store, report(0, (1, 2, 3), leader=1), told)
    assert [order.kind for order in of_shard(keeper)] == [OrderKind.ADD_VOTER]
    for _ in range(7):
        keeper.tick()
        for store in (1, 2):
            keeper.store(store, report(0, (1, 2, 3), leader=1), told)
    assert of_shard(keeper) == []


def test_a_lone_voter_that_leaves_is_joined_first() -> None:
    keeper = Keeper()
    keeper.begin(3, replicas=1)
    keeper.say((1, 2, 3), report(0, (1, 2, 3), leader=1))
    keeper.schedule()
    home = keeper.state.shards[1].voters[0]
    other = next(store for store in (1, 2, 3) if store != home)
    keeper.state.orders.clear()

    def hear(
        voters: tuple[int, ...], learners: tuple[int, ...], *, epoch: int, leader: int
    ) -> None:
        told = report(1, voters, leader=leader, epoch=epoch, learners=learners, term=epoch)
        for store in (1, 2, 3):
            own = [told] if store in (*voters, *learners) else []
            keeper.store(store, report(0, (1, 2, 3), leader=1), *own)

    hear((home,), (), epoch=0, leader=home)
    keeper.tell(DrainStore(home, is_draining=True))
    assert of_shard(keeper)[-1].kind is OrderKind.ADD_LEARNER
    hear((home,), (other,), epoch=5, leader=home)
    (promote,) = of_shard(keeper)
    assert (promote.kind, promote.removed) == (OrderKind.ADD_VOTER, 0)
    hear((home, other), (), epoch=6, leader=home)
    (transfer,) = of_shard(keeper)
    assert (transfer.kind, transfer.store) == (OrderKind.TRANSFER_LEADER, other)
    hear((home, other), (), epoch=7, leader=other)
    (remove,) = of_shard(keeper)
    assert (remove.kind, remove.store) == (OrderKind.REMOVE_MEMBER, home)


def test_wanted_learners_are_added_and_surplus_ones_removed() -> None:
    keeper = Keeper()
    keeper.running(5)
    added = keeper.tell(AddShard("read", 3, 1, "n"))
    assert isinstance(added, KeeperDone)
    shard = added.id
    keeper.schedule()
    voters = keeper.state.shards[shard].voters
    keeper.state.orders.clear()

    def hear(learners: tuple[int, ...], epoch: int) -> list[Order]:
        told = report(shard, voters, leader=voters[0], epoch=epoch, learners=learners)
        for store in range(1, 6):
            own = [told] if store in (*voters, *learners) else []
            if store <= 3:
                own += [report(number, (1, 2, 3), leader=1) for number in BOTH]
            keeper.store(store, *own)
        return of_shard(keeper, shard)

    start, add = hear((), epoch=0)
    assert start.kind is OrderKind.START_REPLICA
    assert add.kind is OrderKind.ADD_LEARNER
    assert add.store not in voters
    others = tuple(store for store in range(1, 6) if store not in voters)
    assert hear(others[:1], epoch=4) == []
    (remove,) = hear(others[:2], epoch=5)
    assert (remove.kind, remove.store in others) == (OrderKind.REMOVE_MEMBER, True)


def test_a_new_replica_goes_where_no_other_failure_domain_is_shared() -> None:
    keeper = Keeper()
    keeper.domains = {1: "a", 2: "b", 3: "c", 4: "a", 5: "c"}
    keeper.running(5)
    keeper.silence(3, known=5)
    assert of_shard(keeper)[-1].store == 5


def test_a_replica_goes_elsewhere_where_its_start_failed() -> None:
    keeper = Keeper()
    keeper.running(5)
    keeper.silence(3, known=5)
    keeper.schedule()
    (start,) = [order for order in keeper.state.orders.values() if order.to_store == 4][:1]
    failed = FinishedOrder(start.id, "no room on the disk")
    keeper.store(4, finished=(failed,))
    shard = start.shard
    keeper.state.orders.clear()
    assert {order.store for order in of_shard(keeper, shard)} == {0, 5}


def test_a_shard_with_too_few_voters_is_alarmed() -> None:
    keeper = Keeper()
    keeper.running()
    assert find_alarms(keeper.state, keeper.settings) == []
    for store in (1, 2):
        keeper.store(store, report(0, (1, 2, 3), leader=1), report(1, (1, 2), leader=1, epoch=4))
    (alarm,) = find_alarms(keeper.state, keeper.settings)
    assert (alarm.kind, alarm.shard) == (AlarmKind.TOO_FEW_VOTERS, 1)
