"""Gateways over log stores keep their promises under swarm faults; planted bugs are found."""

import re

import pytest

from raftwood.simulation import SimulationError, SwarmProfile
from tests.kits.loghub.simulation.mutants import MUTANTS
from tests.kits.loghub.simulation.world import Plan, choose_plan, run_hub
from tests.kits.simulation.seeds import promising

SEEDS_TWICE = range(20)
SEEDS_MAX = 24
PROMISING = {"forgets the producer": 4}
"""Seeds to begin with: those before show nothing."""


def test_the_seeds_hold_every_kind_of_plan() -> None:
    plans = [choose_plan(seed) for seed in SEEDS_TWICE]
    assert sum(plan.crash_share > 0 for plan in plans) >= 4
    assert sum(plan.late_share > 0 for plan in plans) >= 4
    assert sum(plan.retained_bytes_max > 0 for plan in plans) >= 3
    assert sum(plan.churners > 0 for plan in plans) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS_TWICE)
def test_faults_break_no_promise_and_a_seed_runs_the_same_twice(seed: int) -> None:
    outcome = run_hub(seed, choose_plan(seed, faults_s=4.0), twice=True).result
    assert outcome.acked > 10


def test_a_calm_run_stores_all_across_splits_and_merges() -> None:
    plan = Plan(faults_s=5.0, reshard_every_s=0.5)
    outcome = run_hub(1, plan, profile=SwarmProfile(seed=1)).result
    # A run in which nothing is answered would keep all promises.
    assert outcome.acked > 100
    assert outcome.counts["split"] >= 2
    assert outcome.counts["moved"] >= 1
    assert outcome.counts["churned"] >= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught_by_the_check_that_it_is_for(name: str) -> None:
    mutant = MUTANTS[name]
    seen = []
    for seed in promising(PROMISING.get(name, 0), SEEDS_MAX):
        try:
            mutant.run(seed)
        except (AssertionError, SimulationError) as error:
            seen.append(str(error))
            if re.search(mutant.caught_as, str(error)):
                return
    pytest.fail(f"{SEEDS_MAX} seeds did not show that LogHub {name}: {seen}")


def _different_weathers() -> list[str]:
    """A mutant for each combination of faults and plan."""
    found = {f"{each.profile.__name__} {each.plan}": name for name, each in MUTANTS.items()}
    return list(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", _different_weathers())
def test_without_the_bug_the_same_faults_do_no_harm(name: str) -> None:
    mutant = MUTANTS[name]
    run_hub(0, mutant.plan, profile=mutant.profile(0))
