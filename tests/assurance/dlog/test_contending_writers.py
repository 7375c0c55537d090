"""Writers contend for a log, on ledgers in memory and on simulated bookies that fail."""

import pytest

from tests.kits.dlog.simulation import Plan, run_dlog
from tests.kits.dlog.simulation.mutants import MUTANTS, SMALL


@pytest.mark.parametrize("seed", range(5))
def test_no_acked_message_is_lost_or_twice_and_a_seed_runs_the_same_twice(seed: int) -> None:
    assert run_dlog(seed, SMALL, twice=True).takeovers > 20


@pytest.mark.parametrize("seed", range(2))
def test_bookies_that_are_killed_and_come_back_lose_nothing(seed: int) -> None:
    plan = Plan(sessions=2, messages=12, bookies=4, shrinks=seed % 2 == 1)
    assert run_dlog(100 + seed, plan).acked


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught_by_what_it_breaks(name: str) -> None:
    MUTANTS[name].catch()
