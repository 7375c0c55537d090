"""Ensembles are spread over racks, and bookies that failed lately are asked last."""

import random
from collections import Counter

import pytest

from raftwood.dlog.errors import NotEnoughBookies
from raftwood.dlog.ledgers.metadata import BookieId, BookieInfo
from raftwood.dlog.ledgers.placement import Quarantine, choose_ensemble, choose_replacements

SEEDS = range(200)


def bookies(*racks: str, read_only: tuple[int, ...] = ()) -> list[BookieInfo]:
    return [
        BookieInfo(id=BookieId(f"b{number}"), rack=rack, is_read_only=number in read_only)
        for number, rack in enumerate(racks)
    ]


def ensemble(
    known: list[BookieInfo], count: int, seed: int, avoided: tuple[str, ...] = ()
) -> tuple[BookieId, ...]:
    return choose_ensemble(
        known, count=count, chance=random.Random(seed), is_avoided=lambda each: each in avoided
    )


def test_an_ensemble_is_spread_over_as_many_racks_as_there_are() -> None:
    known = bookies("a", "a", "a", "a", "b", "c")
    racks = {each.id: each.rack for each in known}
    for seed in SEEDS:
        chosen = ensemble(known, 3, seed)
        assert {racks[each] for each in chosen} == {"a", "b", "c"}
        assert len(set(chosen)) == 3


def test_neighbours_of_a_striped_ensemble_are_in_different_racks() -> None:
    known = bookies("a", "a", "b", "b")
    racks = {each.id: each.rack for each in known}
    for seed in SEEDS:
        chosen = [racks[each] for each in ensemble(known, 4, seed)]
        assert all(one != other for one, other in zip(chosen, chosen[1:] + chosen[:1], strict=True))


def test_bookies_of_unknown_racks_are_used_alike() -> None:
    used = Counter(each for seed in range(3_000) for each in ensemble(bookies(*[""] * 5), 3, seed))
    assert min(used.values()) > 0.9 * 3_000 * 3 / 5


def test_a_bookie_that_failed_lately_is_asked_last() -> None:
    known = bookies("a", "b", "c", "c")
    for seed in SEEDS:
        assert "b0" not in ensemble(known, 3, seed, avoided=("b0",))
        assert "b0" in ensemble(known, 4, seed, avoided=("b0",))


def test_a_bookie_that_takes_no_writes_is_never_chosen() -> None:
    known = bookies("a", "b", "c", read_only=(1,))
    with pytest.raises(NotEnoughBookies, match=r"needs 3 bookies .* there are 2"):
        ensemble(known, 3, seed=0)


def test_a_replacement_comes_from_a_rack_that_the_others_leave_free() -> None:
    known = bookies("a", "b", "c", "a", "b", "c")
    for seed in SEEDS:
        replaced = choose_replacements(
            known,
            ensemble=[BookieId("b0"), BookieId("b1"), BookieId("b2")],
            places=[2],
            may_return=False,
            chance=random.Random(seed),
            is_avoided=lambda _: False,
        )
        assert replaced == {2: "b5"}


@pytest.mark.parametrize(("may_return", "expected"), [(False, {}), (True, {1: "b1"})])
def test_where_nobody_else_is_left_a_bookie_may_have_its_place_again(
    may_return: bool, expected: dict[int, str]
) -> None:
    replaced = choose_replacements(
        bookies("a", "b", "c"),
        ensemble=[BookieId("b0"), BookieId("b1"), BookieId("b2")],
        places=[1],
        may_return=may_return,
        chance=random.Random(1),
        is_avoided=lambda _: True,
    )
    assert replaced == expected


class _Clock:
    now_ns = 0

    def wall_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns


def test_a_quarantine_ends_by_itself_and_begins_anew_with_each_failure() -> None:
    clock = _Clock()
    quarantine = Quarantine(clock, quarantine_ms=1_000)
    bookie = BookieId("b1")
    assert not quarantine.holds(bookie)
    quarantine.add(bookie)
    clock.now_ns += 900_000_000
    assert quarantine.holds(bookie)
    quarantine.add(bookie)
    clock.now_ns += 900_000_000
    assert quarantine.holds(bookie)
    clock.now_ns += 100_000_000
    assert not quarantine.holds(bookie)
