"""Whole raft hosts keep their promises under swarm faults; planted bugs are found."""

import pytest

from raftwood.simulation import SimulationError, SwarmProfile
from tests.simulation.raft_hosts.cluster import FAULTS_S, Cluster, run_hosts
from tests.simulation.raft_hosts.mutants import MUTANTS

SEEDS = 60
HOURS_MIN = 2.0
TWICE_EVERY = 3
MUTANT_SEEDS_MAX = 25


def test_the_seeds_make_two_simulated_hours_and_twenty_of_them_run_twice() -> None:
    assert SEEDS * FAULTS_S / 3600 >= HOURS_MIN
    assert len(range(0, SEEDS, TWICE_EVERY)) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_faults_break_no_promise(seed: int) -> None:
    outcome = run_hosts(seed, twice=seed % TWICE_EVERY == 0).result
    assert outcome.is_under_load
    # A run in which nothing is answered would keep all promises.
    assert sum(event.outcome == "ok" for event in outcome.events) > outcome.operations / 5


def test_a_short_run_breaks_no_promise_and_is_the_same_twice() -> None:
    profile = SwarmProfile(seed=1, every_s={"power_loss_of_all": 3.0, "kill": 3.0, "reset": 3.0})
    outcome = run_hosts(1, Cluster(faults_s=10.0), profile=profile, twice=True).result
    assert set(outcome.faults) == {"power_loss_of_all", "kill", "reset"}


def test_a_calm_run_is_under_load_and_nothing_fails_in_it() -> None:
    profile = SwarmProfile(seed=1, every_s={"wall_jump": 1.0}, drift=0.05)
    outcome = run_hosts(1, Cluster(faults_s=10.0), profile=profile).result
    assert outcome.is_under_load
    assert {event.outcome for event in outcome.events if event.called > 4.0} == {"ok"}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    for seed in range(MUTANT_SEEDS_MAX):
        try:
            MUTANTS[name].run(seed)
        except (AssertionError, SimulationError):
            return
    pytest.fail(f"{MUTANT_SEEDS_MAX} seeds did not show that a host {name}")


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_without_the_bug_the_same_faults_do_no_harm(name: str) -> None:
    for seed in range(2):
        run_hosts(seed, Cluster(faults_s=15.0, pause_s=0.15), profile=MUTANTS[name].profile(seed))
