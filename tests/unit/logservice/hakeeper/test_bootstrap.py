"""Where shards begin, and what the cluster is until they have."""

from raftwood.logservice.hakeeper.commands import AddShard
from raftwood.logservice.hakeeper.messages import AlarmKind, FinishedOrder, OrderKind
from raftwood.logservice.hakeeper.queries import find_alarms
from raftwood.logservice.hakeeper.state import ClusterPhase
from tests.kits.logservice.keeper import Keeper, report


def test_nothing_is_ordered_before_the_cluster_is_set() -> None:
    keeper = Keeper()
    keeper.say((1, 2, 3))
    assert keeper.plan() == []
    assert keeper.phase() is ClusterPhase.CREATED


def test_a_cluster_begins_once_enough_stores_have_reported() -> None:
    keeper = Keeper()
    keeper.begin()
    keeper.say((1, 2), report(0, (1, 2, 3), leader=1))
    assert keeper.plan() == []
    keeper.store(3, report(0, (1, 2, 3), leader=1))
    orders = keeper.plan()
    assert [order.to_store for order in orders] == [1, 2, 3]
    assert orders[0].members == {1: "s1:1", 2: "s2:1", 3: "s3:1"}
    keeper.schedule()
    assert keeper.phase() is ClusterPhase.BOOTSTRAP_COMMANDS_RECEIVED
    keeper.hear_all()
    assert keeper.phase() is ClusterPhase.RUNNING


def test_a_store_that_never_comes_is_a_founder_in_absence() -> None:
    keeper = Keeper()
    keeper.begin()
    for _ in range(keeper.settings.bootstrap_grace_ticks):
        keeper.say((1, 2), report(0, (1, 2, 3), leader=1))
        keeper.tick()
    assert [order.to_store for order in keeper.plan()] == [1, 2, 3]
    keeper.schedule()
    keeper.hear_all(without=(3,))
    assert keeper.phase() is ClusterPhase.RUNNING
    # It comes late, and begins as the founder that it is.
    orders = keeper.store(3, report(0, (1, 2, 3), leader=1))
    assert [order.kind for order in orders] == [OrderKind.BOOTSTRAP_SHARD]
    keeper.store(3, report(0, (1, 2, 3)), finished=(FinishedOrder(orders[0].id),))
    assert keeper.state.shards[1].awaited == []


def test_founders_are_chosen_once() -> None:
    keeper = Keeper()
    keeper.begin(5)
    keeper.say((1, 2, 3), report(0, (1, 2, 3, 4, 5), leader=1))
    keeper.schedule()
    keeper.say((4, 5), report(0, (1, 2, 3, 4, 5), leader=1))
    keeper.tick(keeper.settings.order_ticks)
    assert {order.to_store for order in keeper.plan()} == {1, 2, 3}


def test_without_a_majority_of_living_founders_the_bootstrap_fails_with_its_reason() -> None:
    keeper = Keeper()
    keeper.begin()
    for _ in range(keeper.settings.bootstrap_ticks + 1):
        keeper.store(1, report(0, (1, 2, 3)))
        assert keeper.plan() == []
        keeper.tick()
    assert keeper.phase() is ClusterPhase.BOOTSTRAP_FAILED
    assert "stores [2, 3] have never reported" in keeper.state.reason
    alarms = find_alarms(keeper.state, keeper.settings)
    assert AlarmKind.BOOTSTRAP_FAILED in {alarm.kind for alarm in alarms}
    # The others come after all.
    keeper.say((1, 2, 3), report(0, (1, 2, 3), leader=1))
    keeper.schedule()
    keeper.hear_all()
    assert keeper.phase() is ClusterPhase.RUNNING


def test_shards_begin_on_different_failure_domains_and_evenly() -> None:
    keeper = Keeper()
    keeper.domains = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    keeper.begin(6, shards=4)
    keeper.say((1, 2, 3, 4, 5, 6), report(0, (1, 2, 3, 4, 5, 6), leader=1))
    keeper.schedule()
    load = dict.fromkeys(range(1, 7), 0)
    for number in range(1, 5):
        voters = keeper.state.shards[number].voters
        assert {keeper.domains[store] for store in voters} == {"a", "b", "c"}
        for store in voters:
            load[store] += 1
    assert set(load.values()) == {2}


def test_a_new_shard_waits_for_as_many_stores_as_it_wants() -> None:
    keeper = Keeper()
    keeper.running()
    keeper.tell(AddShard("wide", 5, 0, "n"))
    keeper.hear_all()
    assert keeper.plan() == []
    assert AlarmKind.TOO_FEW_STORES in {
        alarm.kind for alarm in find_alarms(keeper.state, keeper.settings)
    }


def test_surplus_replicas_of_hakeeper_go_one_by_one_and_not_its_leader() -> None:
    keeper = Keeper()
    keeper.begin(5)
    voters: tuple[int, ...] = (1, 2, 3, 4, 5)
    keeper.say(voters, report(0, voters, leader=2))
    keeper.schedule()
    for epoch in (3, 4):
        for store in range(1, 6):
            shards = [report(0, voters, leader=2, epoch=epoch)] if store in voters else []
            if store in keeper.state.shards[1].voters:
                shards.append(report(1, keeper.state.shards[1].voters, leader=1))
            keeper.store(store, *shards)
        keeper.state.orders.clear()
        orders = [order for order in keeper.plan() if order.shard == 0]
        assert [order.kind for order in orders] == [OrderKind.REMOVE_MEMBER]
        assert orders[0].to_store == 2
        assert orders[0].store != 2
        voters = tuple(store for store in voters if store != orders[0].store)
    assert len(voters) == 3


def test_a_founder_that_comes_back_empty_begins_if_it_was_not_told_before() -> None:
    keeper = Keeper()
    keeper.begin()
    keeper.say((1, 2, 3), report(0, (1, 2, 3), leader=1))
    keeper.schedule()
    keeper.incarnations[3] = "b"
    keeper.store(3)
    assert keeper.state.shards[1].awaited == [1, 2, 3]
    assert [order.to_store for order in keeper.plan()] == [3]
    # From now on it may have begun, and could have voted.
    keeper.schedule()
    keeper.store(3)
    keeper.incarnations[3] = "c"
    keeper.store(3)
    assert keeper.state.shards[1].lost == [3]
    assert keeper.plan() == []
