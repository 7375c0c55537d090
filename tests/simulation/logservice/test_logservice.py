"""Whole log stores keep their promises in short runs."""

from raftwood.testing import SwarmProfile
from tests.kits.logservice.simulation.world import Plan, choose_plan, run_logs


def test_a_calm_run_answers_all_and_elects_once() -> None:
    profile = SwarmProfile(seed=1)
    outcome = run_logs(1, Plan(faults_s=5.0), profile=profile).result
    # A run in which nothing is answered would keep all promises.
    assert outcome.acked > 100
    assert outcome.cuts > 2
    assert outcome.terms <= 4  # HAKeeper's and the shard's first ones


def test_a_short_run_under_faults_breaks_no_promise() -> None:
    outcome = run_logs(4, choose_plan(4, faults_s=8.0)).result
    assert outcome.faults
    assert outcome.operations > 100
