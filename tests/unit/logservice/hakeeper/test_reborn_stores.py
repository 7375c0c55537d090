"""Stores that lost their data, and plans that come after a store has said otherwise."""

from raftwood.logservice.hakeeper.checkers import PlanningRound
from raftwood.logservice.hakeeper.commands import Schedule, Scheduled
from raftwood.logservice.hakeeper.messages import FinishedOrder, OrderKind
from raftwood.logservice.hakeeper.queries import find_alarms
from tests.kits.logservice.keeper import Keeper, report


def test_a_change_is_not_ordered_of_a_leader_that_has_lost_its_replica() -> None:
    keeper = Keeper()
    keeper.running(4)
    keeper.incarnations[3] = "b"
    keeper.store(3)
    plan = keeper.plan()
    assert OrderKind.ADD_LEARNER in [order.kind for order in plan if order.shard == 1]
    keeper.store(1, report(0, (1, 2, 3), leader=1))
    result = keeper.tell(Schedule(1, keeper.state.tick, tuple(plan)))
    assert isinstance(result, Scheduled)
    assert not [
        order
        for order in keeper.state.orders.values()
        if order.shard == 1 and order.kind is OrderKind.ADD_LEARNER
    ]


def test_a_change_is_not_ordered_of_a_leader_that_has_said_that_it_does_not_lead() -> None:
    keeper = Keeper()
    keeper.running(4)
    keeper.incarnations[3] = "b"
    keeper.store(3)
    plan = [order for order in keeper.plan() if order.kind is OrderKind.ADD_LEARNER]
    assert {order.to_store for order in plan} == {1}
    keeper.store(2, report(1, (1, 2, 3), leader=1, term=2))
    keeper.store(1, report(1, (1, 2, 3), leader=0, term=1))
    assert keeper.state.shards[1].leader == 1
    late = tuple(order for order in plan if order.shard == 1)
    assert keeper.tell(Schedule(1, keeper.state.tick, late)) == Scheduled(0)


def test_a_replica_is_not_started_where_its_data_was_lost_after_the_plan() -> None:
    keeper = Keeper()
    keeper.running(4)
    keeper.store(3, report(0, (1, 2, 3), leader=1))
    plan = keeper.plan()
    assert [(order.kind, order.to_store) for order in plan] == [(OrderKind.START_REPLICA, 3)]
    keeper.incarnations[3] = "b"
    keeper.store(3)
    assert keeper.tell(Schedule(1, keeper.state.tick, tuple(plan))) == Scheduled(0)


def test_a_learner_that_nothing_has_reached_is_not_caught_up_however_short_the_log_is() -> None:
    keeper = Keeper()
    keeper.running(4)
    leads = report(1, (1, 2, 3), leader=1, epoch=5, learners=(4,), lagging={2: 0, 3: 0, 4: 7})
    keeper.store(1, report(0, (1, 2, 3), leader=1), leads)
    empty = report(1, (), leader=0, epoch=0)
    keeper.store(4, empty)
    assert not PlanningRound(keeper.state, keeper.settings).is_caught_up(1, 4)
    keeper.store(4, report(1, (1, 2, 3), leader=1, epoch=5, learners=(4,)))
    assert PlanningRound(keeper.state, keeper.settings).is_caught_up(1, 4)


def test_a_store_is_reborn_only_if_it_ever_had_a_replica() -> None:
    keeper = Keeper()
    keeper.running(4)
    for store in (3, 4):
        keeper.incarnations[store] = "b"
        keeper.store(store)
    assert [store for store, each in keeper.state.stores.items() if each.is_reborn] == [3]
    texts = [alarm.text for alarm in find_alarms(keeper.state, keeper.settings)]
    assert len([text for text in texts if "came back without its data" in text]) == 1
    # It was somebody else's folder: the first one is back.
    keeper.incarnations[3] = "a"
    keeper.store(3)
    assert not keeper.state.stores[3].is_reborn


def test_a_place_that_the_leader_refuses_is_tried_last() -> None:
    keeper = Keeper()
    keeper.running(5)
    keeper.silence(3, known=5)
    keeper.schedule()
    (add,) = [
        order
        for order in keeper.state.orders.values()
        if order.shard == 1 and order.kind is OrderKind.ADD_LEARNER
    ]
    # It has started its replica, and was given up long ago by whoever recovered the shard.
    refused, other = add.store, 9 - add.store
    keeper.store(refused, report(1))
    serves = (report(0, (1, 2, 3), leader=1), report(1, (1, 2, 3), leader=1))
    keeper.store(1, *serves, finished=(FinishedOrder(add.id, "it was given up"),))
    chosen = [
        order.store
        for order in keeper.plan()
        if order.kind is OrderKind.ADD_LEARNER and order.shard == 1
    ]
    assert chosen == [other]
