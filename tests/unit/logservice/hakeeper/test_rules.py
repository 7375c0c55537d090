"""What commands do to HAKeeper's state: bytes in, bytes out."""

import pytest

from raftwood.base.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotFound,
    Overloaded,
    StoreDamaged,
    TooLarge,
    UnsupportedVersion,
)
from raftwood.logservice.hakeeper import rules
from raftwood.logservice.hakeeper.commands import (
    AddGuests,
    AddShard,
    AddTnShard,
    AllocateIds,
    DrainStore,
    ForgetStore,
    InitialCluster,
    KeeperDone,
    RemoveService,
    RemoveShard,
    RemoveTnShard,
    Schedule,
    Scheduled,
    SetInitialCluster,
    decode_id,
    decode_orders,
    decode_result,
    encode_command,
)
from raftwood.logservice.hakeeper.messages import GUESTS_FIRST, FinishedOrder, Order, OrderKind
from raftwood.logservice.hakeeper.state import ClusterPhase, KeeperState, decode_state, encode_state
from tests.kits.logservice.keeper import Keeper, report


def test_bytes_that_are_no_command_are_refused_as_a_result() -> None:
    for data in (b"", b"\xc1", b"\x91\x63", b"\x80", encode_command(AllocateIds(1))[:-1]):
        with pytest.raises(InvalidInput, match="not a command"):
            decode_result(rules.apply(KeeperState(), data))


def test_only_the_first_initial_cluster_counts() -> None:
    keeper = Keeper()
    first = keeper.tell(SetInitialCluster(2, 1, 3, 3, {1: "a:1", 2: "b:1", 3: "c:1"}))
    assert first == InitialCluster(is_first=True)
    assert keeper.state.phase is ClusterPhase.BOOTSTRAPPING
    second = keeper.tell(SetInitialCluster(9, 0, 1, 1, {1: "a:1"}))
    assert second == InitialCluster(is_first=False)
    assert sorted(keeper.state.shards) == [0, 1, 2]
    assert [each.log_shard for each in keeper.state.tn_shards.values()] == [1]


def test_guests_begin_with_the_cluster_and_stay() -> None:
    keeper = Keeper()
    members = {1: "a:1", 2: "b:1", 3: "c:1"}
    keeper.tell(SetInitialCluster(1, 0, 1, 3, members, {GUESTS_FIRST: "guest"}))
    assert sorted(keeper.state.shards) == [0, 1, GUESTS_FIRST]
    guest = keeper.state.shards[GUESTS_FIRST]
    assert (guest.name, guest.replicas, guest.is_initial) == ("guest", 3, True)
    with pytest.raises(InvalidInput, match="is no log"):
        keeper.tell(RemoveShard(GUESTS_FIRST))
    with pytest.raises(NotFound):
        keeper.tell(AddTnShard(GUESTS_FIRST, "once"))
    with pytest.raises(AlreadyExists):
        keeper.tell(AddShard("guest", 3, 0, "once"))
    # No other shard ever gets such a number.
    keeper.state.next_id = GUESTS_FIRST - 1
    assert keeper.tell(AllocateIds(1)) == KeeperDone(GUESTS_FIRST - 1)
    with pytest.raises(Overloaded):
        keeper.tell(AddShard("one-more", 3, 0, "once"))


def test_guests_that_came_later_begin_in_clusters_that_lack_them() -> None:
    keeper = Keeper()
    with pytest.raises(Conflict):
        keeper.tell(AddGuests({GUESTS_FIRST: "first"}))
    keeper.tell(
        SetInitialCluster(1, 0, 1, 3, {1: "a:1", 2: "b:1", 3: "c:1"}, {GUESTS_FIRST: "first"})
    )
    later = AddGuests({GUESTS_FIRST: "first", GUESTS_FIRST + 1: "later"})
    keeper.tell(later)
    guest = keeper.state.shards[GUESTS_FIRST + 1]
    assert (guest.name, guest.replicas, guest.is_initial) == ("later", 3, False)
    before = dict(keeper.state.shards)
    keeper.tell(later)
    assert keeper.state.shards == before
    keeper.tell(AddShard("taken", 1, 0, "once"))
    with pytest.raises(AlreadyExists, match="remove it"):
        keeper.tell(AddGuests({GUESTS_FIRST + 2: "taken"}))


@pytest.mark.parametrize(
    "command",
    [
        AddGuests({GUESTS_FIRST - 1: "a-log"}),
        SetInitialCluster(1, 0, 4, 3, {1: "a", 2: "b", 3: "c"}),
        SetInitialCluster(1, 2, 1, 1, {1: "a"}),
        SetInitialCluster(1, 0, 1, 1, {}),
        SetInitialCluster(1, 0, 1, 1, {0: "a"}),
        SetInitialCluster(1, 0, 1, 1, {1: "a"}, {GUESTS_FIRST - 1: "a-log"}),
        SetInitialCluster(1, 0, 1, 1, {1: "a"}, {GUESTS_FIRST: "no/name"}),
        SetInitialCluster(1, 0, 1, 1, {1: "a"}, {GUESTS_FIRST: "two", GUESTS_FIRST + 1: "two"}),
        AllocateIds(0),
        AllocateIds(1 << 40),
        AddShard("no/name", 3, 0, ""),
        AddShard("name", 0, 0, ""),
        AddShard("name", 3, -1, ""),
        RemoveShard(0),
    ],
)
def test_what_is_out_of_bounds_is_refused(command: SetInitialCluster) -> None:
    with pytest.raises(InvalidInput):
        Keeper().tell(command)


def test_ids_are_never_given_twice() -> None:
    keeper = Keeper()
    keeper.begin()
    seen = [decode_id(rules.apply(keeper.state, encode_command(AllocateIds(5))))]
    shard = keeper.tell(AddShard("more", 3, 0, "n"))
    assert isinstance(shard, KeeperDone)
    seen.append(shard.id)
    keeper.tell(RemoveShard(shard.id))
    again = keeper.tell(AddShard("more", 3, 0, "m"))
    assert isinstance(again, KeeperDone)
    assert again.id > shard.id >= seen[0] + 5


def test_a_retried_shard_is_the_same_and_another_of_its_name_is_refused() -> None:
    keeper = Keeper()
    with pytest.raises(Conflict):
        keeper.tell(AddShard("more", 3, 0, "n"))
    keeper.begin()
    first = keeper.tell(AddShard("more", 3, 0, "n"))
    assert keeper.tell(AddShard("more", 3, 0, "n")) == first
    with pytest.raises(AlreadyExists):
        keeper.tell(AddShard("more", 3, 0, "other"))
    with pytest.raises(NotFound):
        keeper.tell(RemoveShard(77))


def test_a_shard_that_a_tn_shard_writes_is_not_removed() -> None:
    keeper = Keeper()
    keeper.begin()
    added = keeper.tell(AddTnShard(1, "n"))
    assert keeper.tell(AddTnShard(1, "n")) == added
    with pytest.raises(AlreadyExists):
        keeper.tell(AddTnShard(1, "m"))
    with pytest.raises(NotFound):
        keeper.tell(AddTnShard(0, "m"))
    with pytest.raises(Conflict):
        keeper.tell(RemoveShard(1))
    assert isinstance(added, KeeperDone)
    keeper.tell(RemoveTnShard(added.id))
    with pytest.raises(NotFound):
        keeper.tell(RemoveTnShard(added.id))
    keeper.tell(RemoveShard(1))
    assert keeper.tell(RemoveShard(1)) == KeeperDone()


def test_a_higher_epoch_wins_and_a_lower_one_is_ignored() -> None:
    keeper = Keeper()
    keeper.running()
    keeper.store(1, report(1, (1, 2, 4), epoch=9, leader=1))
    keeper.store(2, report(1, (1, 2, 3), epoch=0))
    assert keeper.state.shards[1].voters == (1, 2, 4)
    assert keeper.state.shards[1].epoch == 9


def test_other_members_at_an_equal_epoch_are_not_believed() -> None:
    keeper = Keeper()
    keeper.running()
    keeper.store(1, report(1, (1, 2, 4), epoch=9, leader=1))
    keeper.store(5, report(1, (1, 2, 5), epoch=9))
    assert keeper.state.shards[1].voters == (1, 2, 4)
    assert "store 5" in keeper.state.shards[1].conflicts[5]
    assert all(order.shard != 1 for order in keeper.plan() if order.kind is OrderKind.ADD_LEARNER)
    keeper.store(5)
    assert keeper.state.shards[1].conflicts == {}


def test_the_leader_is_the_one_of_the_highest_term() -> None:
    keeper = Keeper()
    keeper.running()
    keeper.store(2, report(1, (1, 2, 3), leader=2, term=5))
    keeper.store(1, report(1, (1, 2, 3), leader=1, term=4))
    assert (keeper.state.shards[1].leader, keeper.state.shards[1].term) == (2, 5)
    keeper.store(2, report(1, (1, 2, 3), leader=0, term=6))
    assert keeper.state.shards[1].leader == 0


def test_orders_come_until_they_are_acknowledged() -> None:
    keeper = Keeper()
    keeper.begin()
    keeper.say((1, 2, 3), report(0, (1, 2, 3), leader=1))
    assert keeper.schedule() == 3
    (order,) = keeper.store(1)
    assert order.kind is OrderKind.BOOTSTRAP_SHARD
    assert keeper.store(1) == (order,)
    assert keeper.store(2, finished=(FinishedOrder(order.id),))  # Another's word does not count.
    assert keeper.store(1, finished=(FinishedOrder(order.id),)) == ()
    assert keeper.state.shards[1].awaited == [2, 3]


def test_an_order_that_nobody_acknowledges_ends_and_is_planned_anew() -> None:
    keeper = Keeper()
    keeper.begin()
    keeper.say((1, 2, 3), report(0, (1, 2, 3), leader=1))
    keeper.schedule()
    assert keeper.plan() == []
    keeper.tick(keeper.settings.order_ticks)
    assert keeper.state.orders == {}
    assert len(keeper.state.failures) == 3
    assert keeper.kinds() == [OrderKind.BOOTSTRAP_SHARD] * 3


def test_what_failed_is_remembered() -> None:
    keeper = Keeper()
    keeper.begin()
    keeper.say((1, 2, 3))
    keeper.schedule()
    (order,) = keeper.store(1)
    keeper.store(1, finished=(FinishedOrder(order.id, "disk full"),))
    assert keeper.state.failures[-1].error == "disk full"
    assert 1 in keeper.state.shards[1].awaited


def test_orders_of_an_older_term_or_another_tick_are_ignored() -> None:
    keeper = Keeper()
    keeper.begin()
    keeper.say((1, 2, 3))
    orders = tuple(keeper.plan())
    tick = keeper.state.tick
    assert keeper.tell(Schedule(7, tick, ())) == Scheduled(0)
    assert keeper.tell(Schedule(6, tick, orders)) == Scheduled(0, is_outdated=True)
    assert keeper.tell(Schedule(7, tick - 1, orders)) == Scheduled(0, is_outdated=True)
    assert keeper.state.orders == {}
    assert keeper.tell(Schedule(7, tick, orders)) == Scheduled(3)


def test_one_change_of_members_is_under_way_at_a_time() -> None:
    keeper = Keeper()
    keeper.running(5)
    orders = tuple(
        Order(0, OrderKind.ADD_LEARNER, to_store=1, shard=1, store=store) for store in (4, 5)
    )
    assert keeper.tell(Schedule(1, keeper.state.tick, orders)) == Scheduled(1)
    wrong = Order(0, OrderKind.ADD_LEARNER, to_store=1, shard=0, store=4, epoch=3)
    assert keeper.tell(Schedule(1, keeper.state.tick, (wrong,))) == Scheduled(0)


def test_a_member_is_not_forgotten_and_another_store_is() -> None:
    keeper = Keeper()
    keeper.running(4)
    with pytest.raises(Conflict, match="member of shard 0"):
        keeper.tell(ForgetStore(3))
    keeper.tell(ForgetStore(4))
    assert 4 not in keeper.state.stores
    for command in (ForgetStore(4), DrainStore(4, is_draining=True), RemoveService("nobody")):
        with pytest.raises(NotFound):
            keeper.tell(command)


def test_a_forgotten_store_comes_back_with_its_own_folder_alone() -> None:
    keeper = Keeper()
    keeper.running(4)
    four = report(1, (1, 2, 4), leader=1, epoch=5)
    keeper.say((1, 2, 4), report(0, (1, 2, 3), leader=1), four)
    for number in (0, 1):
        keeper.state.shards[number].voters = (1, 2, 4)
    keeper.tell(ForgetStore(3))
    keeper.incarnations[3] = "b"
    with pytest.raises(Conflict, match="start it with a new number and --join"):
        keeper.store(3)
    assert 3 not in keeper.state.stores
    keeper.state = decode_state(encode_state(keeper.state))
    with pytest.raises(Conflict):
        keeper.store(3)
    keeper.incarnations[3] = "a"
    keeper.store(3)
    assert 3 in keeper.state.stores


def test_numbers_are_forgotten_for_good_while_a_store_of_0_1_0_runs() -> None:
    """It would come to another state by the same commands."""
    keeper = Keeper()
    keeper.running(4)
    four = report(1, (1, 2, 4), leader=1, epoch=5)
    keeper.say((1, 2, 4), report(0, (1, 2, 3), leader=1), four)
    for number in (0, 1):
        keeper.state.shards[number].voters = (1, 2, 4)
    keeper.state.stores[2].version = "0.1.0"
    keeper.tell(ForgetStore(3))
    assert keeper.state.forgotten == {}


def test_the_number_of_a_store_that_never_had_a_replica_is_free_again() -> None:
    keeper = Keeper()
    keeper.running(4)
    keeper.tell(ForgetStore(4))
    keeper.incarnations[4] = "b"
    keeper.store(4)
    assert 4 in keeper.state.stores


def test_a_store_that_comes_back_empty_is_not_what_it_was() -> None:
    keeper = Keeper()
    keeper.running()
    keeper.incarnations[3] = "b"
    keeper.store(3)
    assert keeper.state.shards[1].lost == [3]
    assert OrderKind.START_REPLICA not in keeper.kinds()


def test_texts_without_end_are_refused() -> None:
    keeper = Keeper()
    with pytest.raises(TooLarge):
        keeper.store(1, alarms=("x" * 5000,))
    with pytest.raises(TooLarge):
        keeper.store(1, alarms=("x",) * 200)
    with pytest.raises(TooLarge):
        keeper.store(1, report(1, tuple(range(1, 300))))
    with pytest.raises(InvalidInput):
        keeper.store(0)
    with pytest.raises(InvalidInput):
        keeper.service("bad name")


def test_an_answer_of_another_kind_is_told_apart() -> None:
    keeper = Keeper()
    keeper.begin()
    data = rules.apply(keeper.state, encode_command(AllocateIds(1)))
    with pytest.raises(Exception, match="answered a heartbeat"):
        decode_orders(data)


def test_a_snapshot_is_the_state() -> None:
    keeper = Keeper()
    keeper.running(5, tn=1)
    keeper.service("tn-1")
    keeper.schedule()
    data = encode_state(keeper.state)
    assert decode_state(data) == keeper.state
    assert encode_state(decode_state(data)) == data


def test_a_snapshot_that_is_damaged_or_newer_is_refused() -> None:
    data = encode_state(KeeperState())
    for damaged in (b"", b"XXXX", data[:-1], data[:6], data + b"\x00"):
        with pytest.raises(StoreDamaged):
            decode_state(damaged)
    with pytest.raises(UnsupportedVersion, match="newer"):
        decode_state(data[:4] + b"\x09" + data[5:])
