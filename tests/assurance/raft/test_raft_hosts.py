"""Whole raft hosts keep their promises for 0.2 simulated hours; planted bugs are found."""

import pytest

from raftwood.testing import SwarmProfile
from tests.kits.models import run_seeds, weathers
from tests.kits.raft.hosts.cluster import Cluster, choose_cluster, run_hosts
from tests.kits.raft.hosts.mutants import CAUGHT_BY, MUTANTS
from tests.kits.raft.model.mutants import MUTANTS as MODEL_MUTANTS

FAULTS_S = 720.0
SHARES = 6


@pytest.mark.parametrize("share", range(SHARES))
def test_faults_break_no_promise(share: int) -> None:
    """Half of the runs change members."""

    def run(seed: int) -> float:
        outcome = run_hosts(seed, choose_cluster(seed, faults_s=60.0)).result
        assert outcome.is_under_load
        # A run in which nothing is answered would keep all promises.
        assert sum(event.outcome == "ok" for event in outcome.events) > outcome.operations / 5
        return outcome.faults_s

    run_seeds(100 * share, run, until=FAULTS_S / SHARES)


@pytest.mark.parametrize("seed", range(2))
def test_a_seed_runs_the_same_twice(seed: int) -> None:
    outcome = run_hosts(seed, choose_cluster(seed, faults_s=10.0), twice=True).result
    assert sum(event.outcome == "ok" for event in outcome.events) > 50


@pytest.mark.parametrize("seed", range(2, 4))
def test_flipped_bits_of_one_store_never_spread(seed: int) -> None:
    profile = SwarmProfile(seed=seed, every_s={"kill": 10.0, "reset": 5.0})
    outcome = run_hosts(seed, Cluster(faults_s=30.0, flip_every_s=3.0), profile=profile).result
    assert outcome.flips >= 3


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch(seeds_max=80)


@pytest.mark.parametrize("name", weathers(MUTANTS))
def test_without_the_bug_the_same_faults_do_no_harm(name: str) -> None:
    MUTANTS[name].run(MUTANTS[name].first)


def test_every_well_known_bug_is_planted_somewhere() -> None:
    planted = {"hosts": list(MUTANTS), "model": list(MODEL_MUTANTS)}
    assert len(CAUGHT_BY) >= 10
    for name, places in CAUGHT_BY.items():
        assert places, name
        for place, mutant in places.items():
            assert mutant in planted[place], name
