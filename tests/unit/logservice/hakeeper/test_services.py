"""TN shards have one living owner, whose lease is above all before it."""

from raftwood.logservice.hakeeper.commands import RemoveService, RemoveTnShard
from raftwood.logservice.hakeeper.messages import (
    FinishedOrder,
    OrderKind,
    ServiceKind,
    TnReplicaReport,
)
from tests.kits.logservice.keeper import Keeper


def given(keeper: Keeper, service: str) -> TnReplicaReport:
    keeper.schedule()
    (order,) = keeper.service(service)
    assert order.kind is OrderKind.ADD_TN_SHARD
    owned = TnReplicaReport(order.tn_shard, order.shard, order.holder)
    keeper.service(service, owned, finished=(FinishedOrder(order.id),))
    return owned


def test_a_tn_shard_is_given_to_a_living_tn_service() -> None:
    keeper = Keeper()
    keeper.running(tn=1)
    keeper.service("gateway", kind=ServiceKind.CN)
    assert keeper.plan() == []
    keeper.service("tn-1")
    owned = given(keeper, "tn-1")
    assert owned.log_shard == 1
    assert keeper.plan() == []


def test_the_work_of_a_silent_service_goes_to_another_under_a_higher_lease() -> None:
    keeper = Keeper()
    keeper.running(tn=1)
    keeper.service("tn-1")
    first = given(keeper, "tn-1")
    for _ in range(keeper.settings.service_down_ticks + 1):
        keeper.tick()
        keeper.service("tn-2")
        keeper.hear_all()
    second = given(keeper, "tn-2")
    assert second.tn_shard == first.tn_shard
    assert second.holder > first.holder
    # The first comes back with what is not its own any more.
    keeper.service("tn-1", first)
    keeper.schedule()
    (order,) = keeper.service("tn-1", first)
    assert order.kind is OrderKind.SHUTDOWN_SERVICE
    # It has begun anew, though its acknowledgement is lost.
    assert keeper.service("tn-1") == ()
    assert keeper.plan() == []


def test_an_owner_that_begins_anew_gets_its_shard_again() -> None:
    keeper = Keeper()
    keeper.running(tn=1)
    keeper.service("tn-1")
    first = given(keeper, "tn-1")
    keeper.service("tn-1")
    assert given(keeper, "tn-1") == first


def test_work_is_shared() -> None:
    keeper = Keeper()
    keeper.begin(shards=4, tn=4)
    keeper.hear_all()
    keeper.schedule()
    keeper.hear_all()
    for name in ("tn-1", "tn-2"):
        keeper.service(name)
    keeper.schedule()
    assert len(keeper.service("tn-1")) == len(keeper.service("tn-2")) == 2


def test_a_service_is_forgotten_after_long_silence_or_by_command() -> None:
    keeper = Keeper()
    keeper.running(tn=1)
    keeper.service("tn-1")
    given(keeper, "tn-1")
    keeper.tell(RemoveService("tn-1"))
    assert keeper.state.tn_shards[2].owner == ""
    keeper.service("tn-2")
    keeper.tick(keeper.settings.service_removed_ticks + 1)
    assert keeper.state.services == {}


def test_a_removed_tn_shard_is_taken_away() -> None:
    keeper = Keeper()
    keeper.running(tn=1)
    keeper.service("tn-1")
    owned = given(keeper, "tn-1")
    keeper.tell(RemoveTnShard(owned.tn_shard))
    keeper.schedule()
    (order,) = keeper.service("tn-1", owned)
    assert (order.kind, order.tn_shard) == (OrderKind.REMOVE_TN_SHARD, owned.tn_shard)
