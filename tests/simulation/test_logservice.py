"""Whole log stores keep their promises under swarm faults; planted bugs are found."""

import re

import pytest

from raftwood.simulation import SimulationError, SwarmProfile
from tests.kits.logservice.simulation.mutants import MUTANTS
from tests.kits.logservice.simulation.world import Plan, choose_plan, run_logs

SEEDS_TWICE = range(20)
SEEDS_MAX = 24


def test_the_seeds_hold_every_kind_of_plan() -> None:
    plans = [choose_plan(seed) for seed in SEEDS_TWICE]
    assert sum(plan.is_replaced for plan in plans) >= 4
    assert sum(plan.has_leases for plan in plans) >= 4
    assert sum(plan.transfer_every_s is not None for plan in plans) >= 3
    assert any(plan.big_share for plan in plans)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS_TWICE)
def test_faults_break_no_promise_and_a_seed_runs_the_same_twice(seed: int) -> None:
    outcome = run_logs(seed, choose_plan(seed, faults_s=8.0), twice=True).result
    assert outcome.operations > 100


def test_a_calm_run_answers_all_and_elects_once() -> None:
    profile = SwarmProfile(seed=1)
    outcome = run_logs(1, Plan(faults_s=5.0), profile=profile).result
    # A run in which nothing is answered would keep all promises.
    assert outcome.acked > 100
    assert outcome.cuts > 2
    assert outcome.terms <= 4  # HAKeeper's and the shard's first ones


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught_by_the_check_that_it_is_for(name: str) -> None:
    mutant = MUTANTS[name]
    seen = []
    for seed in range(SEEDS_MAX):
        try:
            mutant.run(seed)
        except (AssertionError, SimulationError) as error:
            seen.append(str(error))
            if re.search(mutant.caught_as, str(error)):
                return
    pytest.fail(f"{SEEDS_MAX} seeds did not show that the log service {name}: {seen}")


def _different_weathers() -> list[str]:
    """A mutant for each combination of faults and plan."""
    found = {f"{each.profile.__name__} {each.plan}": name for name, each in MUTANTS.items()}
    return list(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", _different_weathers())
def test_without_the_bug_the_same_faults_do_no_harm(name: str) -> None:
    mutant = MUTANTS[name]
    run_logs(0, mutant.plan, profile=mutant.profile(0))
