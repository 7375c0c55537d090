"""Whole log stores keep their promises for 0.2 simulated hours; planted bugs are found."""

import msgspec
import pytest

from tests.kits.logservice.simulation.mutants import MUTANTS
from tests.kits.logservice.simulation.world import choose_plan, run_logs
from tests.kits.models import run_seeds, weathers

FAULTS_S = 720.0
FIRST_SEEDS = range(0, 18, 3)
"""Each with the next ones makes a share of it."""


@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_faults_break_no_promise(first: int) -> None:
    def run(seed: int) -> float:
        plan = msgspec.structs.replace(choose_plan(seed, faults_s=60.0), pause_s=1.5)
        outcome = run_logs(seed, plan).result
        # A run in which nothing is answered would keep all promises.
        assert outcome.operations > 200
        return outcome.faults_s if outcome.faults else 0.0

    run_seeds(first, run, until=FAULTS_S / len(FIRST_SEEDS))


@pytest.mark.parametrize("seed", range(2))
def test_a_seed_runs_the_same_twice(seed: int) -> None:
    outcome = run_logs(seed, choose_plan(seed, faults_s=8.0), twice=True).result
    assert outcome.operations > 100


def test_the_seeds_hold_every_kind_of_plan() -> None:
    plans = [choose_plan(first + number) for first in FIRST_SEEDS for number in range(2)]
    assert sum(plan.is_replaced for plan in plans) >= 3
    assert sum(plan.has_leases for plan in plans) >= 3
    assert sum(plan.transfer_every_s is not None for plan in plans) >= 3
    assert any(plan.big_share for plan in plans)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught_by_the_check_that_it_is_for(name: str) -> None:
    MUTANTS[name].catch(seeds_max=24)


@pytest.mark.parametrize("name", weathers(MUTANTS))
def test_without_the_bug_the_same_faults_do_no_harm(name: str) -> None:
    MUTANTS[name].run(MUTANTS[name].first)
