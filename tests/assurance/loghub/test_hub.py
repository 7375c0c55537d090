"""Gateways over log stores keep their promises under swarm faults; planted bugs are found."""

import pytest
from msgspec.structs import replace

from tests.kits.floors import SHARES, under_faults
from tests.kits.loghub.simulation.mutants import MUTANTS
from tests.kits.loghub.simulation.world import Outcome, choose_plan, choose_profile, run_hub
from tests.kits.models import weathers


def _run_for_long(seed: int) -> Outcome:
    """At a slow pace, with kills in every run, and without the many small reads of short runs."""
    plan = choose_plan(seed, faults_s=72.0)
    profile = choose_profile(seed)
    network = replace(profile.network, split_probability=0.0, short_read_probability=0.0)
    return run_hub(
        seed,
        replace(plan, gateways=2, pause_s=3.0, reshard_every_s=12.0, is_slow=True),
        profile=replace(profile, network=network, every_s={"kill": 15.0, **profile.every_s}),
    ).result


@pytest.mark.parametrize("share", range(SHARES))
def test_faults_break_no_promise(share: int) -> None:
    outcomes = under_faults(share, _run_for_long)
    assert sum(outcome.acked for outcome in outcomes) > 50


@pytest.mark.parametrize("seed", range(2))
def test_a_seed_runs_the_same_twice(seed: int) -> None:
    assert run_hub(seed, choose_plan(seed, faults_s=3.0), twice=True).result.acked > 10


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught_by_the_check_that_it_is_for(name: str) -> None:
    MUTANTS[name].catch()


@pytest.mark.parametrize("name", weathers(MUTANTS))
def test_without_the_bug_the_same_faults_do_no_harm(name: str) -> None:
    MUTANTS[name].run(0)
