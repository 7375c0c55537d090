"""Whole raft hosts keep their promises in short runs under faults."""

from raftwood.testing import SwarmProfile
from tests.kits.raft.hosts.cluster import Cluster, run_hosts
from tests.kits.raft.hosts.damage import SNAPSHOTS


def test_a_short_run_breaks_no_promise_and_is_the_same_twice() -> None:
    profile = SwarmProfile(seed=1, every_s={"power_loss_of_all": 3.0, "kill": 3.0, "reset": 3.0})
    outcome = run_hosts(1, Cluster(faults_s=10.0), profile=profile, twice=True).result
    assert set(outcome.faults) == {"power_loss_of_all", "kill", "reset"}


def test_a_calm_run_is_under_load_and_nothing_fails_in_it() -> None:
    profile = SwarmProfile(seed=1, every_s={"wall_jump": 1.0}, drift=0.05)
    outcome = run_hosts(1, Cluster(faults_s=10.0), profile=profile).result
    assert outcome.is_under_load
    assert {event.outcome for event in outcome.events if event.called > 4.0} == {"ok"}


def test_membership_changes_with_kills_and_partitions_lose_nothing() -> None:
    profile = SwarmProfile(
        seed=1, every_s={"kill": 2.0, "power_loss": 4.0, "partition": 6.0, "one_way_cut": 8.0}
    )
    outcome = run_hosts(1, Cluster(faults_s=20.0, change_every_s=0.6), profile=profile).result
    assert sum(outcome.changes.values()) >= 2
    assert outcome.terms > 5


def test_a_flipped_bit_on_one_store_halts_it_and_never_spreads() -> None:
    profile = SwarmProfile(seed=1, every_s={"kill": 10.0, "reset": 5.0})
    outcome = run_hosts(1, Cluster(faults_s=20.0, flip_every_s=3.0), profile=profile).result
    assert outcome.flips >= 3
    # It names the file, and what to do.
    for problem in outcome.halted:
        assert "/data/store/" in problem
        assert "raftwood store check" in problem


def test_flipped_bits_in_snapshots_are_repaired_from_the_peers() -> None:
    profile = SwarmProfile(seed=1, every_s={"kill": 10.0, "reset": 5.0})
    cluster = Cluster(faults_s=30.0, flip_every_s=2.0, flip_kinds=(SNAPSHOTS,))
    outcome = run_hosts(1, cluster, profile=profile).result
    assert not outcome.halted
    assert outcome.repaired
