"""Leaders, nodes and writers with faults: one master at a time, and no acked write is lost."""

from tests.kits.zeppelin.meta.world.moving import move_through
from tests.kits.zeppelin.meta.world.world import World, live_through


def test_one_master_serves_and_nothing_is_lost_whatever_happens() -> None:
    world = live_through(0)
    assert world.writes > 1_000
    assert world.failovers > 0
    assert world.handovers > 0


def test_nothing_is_lost_where_nodes_leave() -> None:
    world = live_through(1, more_faults=World.leave)
    assert world.writes > 1_000
    assert world.handovers > 5


def test_replicas_move_and_nothing_is_lost_whatever_happens() -> None:
    world = move_through(0)
    assert world.writes > 500
    assert world.moved > 0
