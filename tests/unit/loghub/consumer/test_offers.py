"""What is free is left to the worker that should take it; after a while it is anybody's."""

from raftwood.loghub.consumer import lease_events
from raftwood.loghub.consumer.lease_agent import LeaseOffers
from raftwood.loghub.consumer.lease_events import StoreCall
from raftwood.loghub.consumer.lease_plan import LeaseMove
from raftwood.loghub.consumer.leases import NOBODY
from tests.kits.loghub.agents import Group, T, Worker

PATIENCE = 100
FREE = LeaseMove("0", NOBODY, "other")
MINE = LeaseMove("0", NOBODY, "me")


def _offers() -> LeaseOffers:
    offers = LeaseOffers("me", patience_ms=PATIENCE)
    assert offers.planned([FREE], 1_000) == [FREE]
    return offers


def test_what_another_should_take_is_left_to_it_for_a_while() -> None:
    offers = _offers()
    assert offers.planned([FREE], 1_000 + PATIENCE - 1) == [FREE]
    assert offers.planned([FREE], 1_000 + PATIENCE) == [MINE]
    assert offers.planned([FREE], 1_000 + 2 * PATIENCE) == [MINE]


def test_it_begins_anew_for_another_worker_and_where_it_was_taken_meanwhile() -> None:
    third = LeaseMove("0", NOBODY, "third")
    offers = _offers()
    assert offers.planned([third], 1_000 + PATIENCE) == [third]
    assert offers.planned([FREE], 1_000 + 2 * PATIENCE) == [FREE]
    assert offers.planned([], 1_000 + 2 * PATIENCE) == []
    assert offers.planned([FREE], 1_000 + 3 * PATIENCE) == [FREE]


def test_steals_and_the_own_part_are_as_planned_however_long_they_take() -> None:
    moves = [
        LeaseMove("1", "other", "third"),
        LeaseMove("2", "third", "me"),
        LeaseMove("3", NOBODY, "me"),
    ]
    offers = _offers()
    for at_ms in range(1_000, 1_000 + 5 * PATIENCE, PATIENCE // 2):
        assert offers.planned(moves, at_ms) == moves


def _orphans() -> tuple[Group, Worker, Worker]:
    """Four shards of one that died, which two others should share; the second cannot take."""
    group = Group("0", "1", "2", "3")
    dead = group.join("dead")
    group.run_until(lambda: len(dead.running) == 4, within_ms=T)
    dead.is_up = False
    anne, ben = group.join("anne"), group.join("ben")
    ben.failing = {StoreCall.TAKE}
    group.run_until(lambda: len(anne.running) == 2, within_ms=3 * T)
    return group, anne, ben


def test_a_worker_that_cannot_take_its_part_does_not_keep_it_from_others() -> None:
    group, anne, ben = _orphans()
    took_ms = group.run_until(lambda: len(anne.running) == 4, within_ms=4 * T)
    assert took_ms >= 2 * T
    ben.failing = set()
    group.run_for(2 * T)
    assert group.sizes() == [2, 2]


def test_a_store_that_is_away_uses_up_nobodys_patience() -> None:
    group, anne, ben = _orphans()
    group.is_store_away = True
    group.run_for(3 * T)
    group.is_store_away = False
    ben.failing = set()
    takes = anne.asked[lease_events.AskTake]
    group.run_until(lambda: group.sizes() == [2, 2], within_ms=T)
    assert anne.asked[lease_events.AskTake] == takes
