"""Twenty writers contend for a log, on ledgers in memory and on simulated bookies that fail."""

import pytest

from tests.kits.dlog.simulation import Plan, mutants, run_dlog
from tests.kits.dlog.simulation.mutants import SMALL
from tests.kits.dlog.violations import assert_caught

SEEDS = 40


@pytest.mark.parametrize("seed", range(4))
def test_every_acked_message_is_there_once_in_order_and_without_a_hole(seed: int) -> None:
    report = run_dlog(seed, SMALL)
    assert report.acked
    assert report.takeovers > 20


@pytest.mark.slow
def test_two_runs_of_one_seed_are_the_same() -> None:
    run_dlog(5, SMALL, twice=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_bookies_that_are_killed_and_come_back_lose_nothing(seed: int) -> None:
    plan = Plan(sessions=2, messages=12, bookies=4, shrinks=seed % 2 == 1)
    assert run_dlog(100 + seed, plan).acked


@pytest.mark.parametrize("planted", mutants.MUTANTS, ids=lambda each: each.plant.__name__)
def test_a_planted_bug_is_caught_by_what_it_breaks(
    planted: mutants.Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.plant(monkeypatch)
    seeds = range(planted.first, planted.first + SEEDS)
    assert_caught(planted.harm, lambda seed: run_dlog(seed, planted.plan), seeds)
