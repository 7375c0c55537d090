"""Leaders and new replicas go where there is room on the disk."""

from raftwood.logservice.hakeeper.messages import OrderKind
from tests.kits.logservice.keeper import Keeper


def running(*, short: tuple[int, ...], stores: int = 3) -> Keeper:
    """Shard 1 on stores 1 to 3, led by 1; some stores take no more appends."""
    keeper = Keeper()
    keeper.running(stores)
    keeper.hear_all(stores)
    for store in short:
        keeper.state.stores[store].is_short = True
    return keeper


def test_a_leader_without_room_hands_over_to_the_voter_with_most() -> None:
    keeper = running(short=(1,))
    keeper.state.stores[3].disk_free_bytes = 1000
    (transfer,) = keeper.plan()
    assert (transfer.kind, transfer.to_store) == (OrderKind.TRANSFER_LEADER, 1)
    assert (transfer.shard, transfer.store) == (1, 3)
    keeper.schedule()
    assert keeper.plan() == []


def test_a_leader_without_room_hands_over_to_a_slow_disk_only_where_there_is_no_other() -> None:
    keeper = running(short=(1,))
    keeper.state.stores[3].disk_free_bytes = 1000
    keeper.state.stores[3].alarms = ("disk-slow: a sync takes 900 ms on this store",)
    (transfer,) = keeper.plan()
    assert transfer.store == 2
    keeper.state.stores[2].is_short = True
    (transfer,) = keeper.plan()
    assert transfer.store == 3


def test_nobody_hands_over_where_nobody_has_room() -> None:
    assert running(short=(1, 2, 3)).plan() == []


def test_a_follower_without_room_changes_nothing() -> None:
    assert running(short=(2,)).plan() == []


def test_a_store_without_room_gets_no_replica() -> None:
    keeper = running(short=(4,), stores=4)
    keeper.silence(3, known=4)
    keeper.state.stores[4].is_short = True
    assert keeper.kinds() == []
    keeper.state.stores[4].is_short = False
    assert OrderKind.ADD_LEARNER in keeper.kinds()
