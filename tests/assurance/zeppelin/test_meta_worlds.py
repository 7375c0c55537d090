"""Leaders, nodes and writers with faults: one master at a time, and no write lost that must not be.

Mutants of the rules and plans are planted, and each is found.
"""

import pytest

from tests.kits.zeppelin.meta.world.moving import move_through
from tests.kits.zeppelin.meta.world.mutants import MUTANTS
from tests.kits.zeppelin.meta.world.world import World, live_through


@pytest.mark.parametrize("seed", range(1, 8))
def test_one_master_serves_and_nothing_is_lost_whatever_happens(seed: int) -> None:
    world = live_through(seed)
    assert world.writes > 1_000
    assert world.failovers > 0
    assert world.handovers > 0


def test_nothing_is_lost_where_nodes_leave() -> None:
    world = live_through(3, more_faults=World.leave)
    assert world.writes > 1_000
    assert world.handovers > 5


@pytest.mark.parametrize("seed", range(1, 4))
def test_replicas_move_and_nothing_is_lost_whatever_happens(seed: int) -> None:
    world = move_through(seed)
    assert world.writes > 500
    assert world.moved > 0


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch()
