"""Gateways over log stores: what the seeds hold, and a run in which nothing fails."""

from raftwood.testing import SwarmProfile
from tests.kits.loghub.simulation.world import Plan, choose_plan, run_hub


def test_the_seeds_hold_every_kind_of_plan() -> None:
    plans = [choose_plan(seed) for seed in range(20)]
    assert sum(plan.crash_share > 0 for plan in plans) >= 4
    assert sum(plan.late_share > 0 for plan in plans) >= 4
    assert sum(plan.retained_bytes_max > 0 for plan in plans) >= 3
    assert sum(plan.churners > 0 for plan in plans) >= 4


def test_a_calm_run_stores_all_across_splits_and_merges() -> None:
    plan = Plan(faults_s=5.0, reshard_every_s=0.5)
    outcome = run_hub(1, plan, profile=SwarmProfile(seed=1)).result
    # A run in which nothing is answered would keep all promises.
    assert outcome.acked > 100
    assert outcome.counts["split"] >= 2
    assert outcome.counts["moved"] >= 1
    assert outcome.counts["churned"] >= 2
