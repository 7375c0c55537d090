"""Gateways over log stores keep their promises under swarm faults; planted bugs are found."""

import pytest

from tests.kits.floors import SHARES, is_first, under_faults
from tests.kits.loghub.simulation.mutants import MUTANTS
from tests.kits.loghub.simulation.world import Outcome, choose_plan, run_hub
from tests.kits.models import weathers

FAULTS_S = 48.0
PACE = 10.0


def _run(seed: int) -> Outcome:
    plan = choose_plan(seed, faults_s=FAULTS_S, pace=PACE)
    return run_hub(seed, plan, twice=is_first(seed)).result


@pytest.mark.parametrize("share", range(SHARES))
def test_faults_break_no_promise_and_a_seed_runs_the_same_twice(share: int) -> None:
    outcomes = under_faults(share, _run)
    assert sum(outcome.acked for outcome in outcomes) > 300


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught_by_the_check_that_it_is_for(name: str) -> None:
    MUTANTS[name].catch()


@pytest.mark.parametrize("name", weathers(MUTANTS))
def test_without_the_bug_the_same_faults_do_no_harm(name: str) -> None:
    MUTANTS[name].run(0)
