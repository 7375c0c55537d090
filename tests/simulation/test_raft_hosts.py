"""Whole raft hosts keep their promises under swarm faults, for two simulated hours and more."""

import pytest

from raftwood.simulation import SwarmProfile
from tests.kits.raft.hosts.cluster import FAULTS_S, Cluster, choose_cluster, run_hosts
from tests.kits.raft.hosts.damage import SNAPSHOTS

SEEDS = 60
HOURS_MIN = 2.0
SEEDS_TWICE = range(1000, 1020)


def test_the_seeds_make_two_simulated_hours() -> None:
    assert SEEDS * FAULTS_S / 3600 >= HOURS_MIN
    clusters = [choose_cluster(seed) for seed in range(SEEDS)]
    assert sum(cluster.change_every_s is not None for cluster in clusters) >= SEEDS / 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_faults_break_no_promise(seed: int) -> None:
    outcome = run_hosts(seed).result
    assert outcome.is_under_load
    # A run in which nothing is answered would keep all promises.
    assert sum(event.outcome == "ok" for event in outcome.events) > outcome.operations / 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS_TWICE)
def test_a_seed_runs_the_same_twice(seed: int) -> None:
    cluster = choose_cluster(seed, faults_s=20.0)
    outcome = run_hosts(seed, cluster, twice=True).result
    assert sum(event.outcome == "ok" for event in outcome.events) > 50


def test_a_short_run_breaks_no_promise_and_is_the_same_twice() -> None:
    profile = SwarmProfile(seed=1, every_s={"power_loss_of_all": 3.0, "kill": 3.0, "reset": 3.0})
    outcome = run_hosts(1, Cluster(faults_s=10.0), profile=profile, twice=True).result
    assert set(outcome.faults) == {"power_loss_of_all", "kill", "reset"}


def test_a_calm_run_is_under_load_and_nothing_fails_in_it() -> None:
    profile = SwarmProfile(seed=1, every_s={"wall_jump": 1.0}, drift=0.05)
    outcome = run_hosts(1, Cluster(faults_s=10.0), profile=profile).result
    assert outcome.is_under_load
    assert {event.outcome for event in outcome.events if event.called > 4.0} == {"ok"}


@pytest.mark.parametrize("seed", range(4))
def test_membership_changes_with_kills_and_partitions_lose_nothing(seed: int) -> None:
    profile = SwarmProfile(
        seed=seed, every_s={"kill": 2.0, "power_loss": 4.0, "partition": 6.0, "one_way_cut": 8.0}
    )
    outcome = run_hosts(seed, Cluster(faults_s=30.0, change_every_s=0.6), profile=profile).result
    assert sum(outcome.changes.values()) >= 2
    assert outcome.terms > 5


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_on_one_store_halts_it_and_never_spreads(seed: int) -> None:
    profile = SwarmProfile(seed=seed, every_s={"kill": 10.0, "reset": 5.0})
    outcome = run_hosts(seed, Cluster(faults_s=30.0, flip_every_s=3.0), profile=profile).result
    assert outcome.flips >= 3
    # It names the file, and what to do.
    assert all("/data/store/" in problem and "restore" in problem for problem in outcome.halted)


def test_flipped_bits_in_snapshots_are_repaired_from_the_peers() -> None:
    repaired = 0
    for seed in range(4):
        profile = SwarmProfile(seed=seed, every_s={"kill": 10.0, "reset": 5.0})
        cluster = Cluster(faults_s=30.0, flip_every_s=2.0, flip_kinds=(SNAPSHOTS,))
        outcome = run_hosts(seed, cluster, profile=profile).result
        assert not outcome.halted
        repaired += outcome.repaired
    assert repaired > 2
