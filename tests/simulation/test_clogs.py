"""Shippers and receivers on machines that fail lose nothing, and store nothing twice."""

import pytest

from tests.kits.clogs.simulation import Plan, Violation, run_clogs
from tests.kits.clogs.simulation.mutants import MUTANTS, Planted
from tests.kits.clogs.simulation.streams import run_streams
from tests.kits.simulation.seeds import promising

SEEDS = 30
_FAULTY = Plan(faults_s=12, calm=0.5, move_s=0.3, weather_s=2.0, ring_s=1.0)


def test_killed_and_resumed_batches_are_stored_once() -> None:
    outcome = run_clogs(2, _FAULTY).result
    assert outcome.promised > 500
    assert min(outcome.resumed, outcome.retried, outcome.moves, outcome.faults) > 10


def test_all_receivers_gone_for_a_minute_lose_nothing() -> None:
    plan = Plan(faults_s=0.5, gone_s=60.0, weather_s=0, is_isolated=True, line_bytes=400)
    outcome = run_clogs(1, plan).result
    assert outcome.promised == outcome.stored > 3_000
    assert not outcome.dropped


def test_what_is_dropped_is_counted_and_never_stored() -> None:
    plan = Plan(
        faults_s=5, gone_s=20.0, when_full="drop-oldest", has_spool=False, line_bytes=400, ring_s=1
    )
    outcome = run_clogs(3, plan).result
    assert min(outcome.dropped, outcome.stored) > 100


def test_what_a_spool_on_a_bad_disk_may_hold_is_not_dropped() -> None:
    plan = Plan(
        calm=0.5,
        has_disk_errors=True,
        line_bytes=400,
        batch_lines_max=64,
        move_s=0.3,
        weather_s=2,
        ring_s=1,
    )
    assert run_clogs(185, plan).result.dropped > 50


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_every_promised_line_is_stored_once_and_in_order(seed: int) -> None:
    outcome = run_clogs(seed).result
    assert outcome.promised > 300


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_logstores_whose_shards_change_have_every_line_once(seed: int) -> None:
    lines, shards = run_streams(seed).result
    assert lines > 150
    assert shards > 20


@pytest.mark.slow
def test_two_runs_of_one_seed_are_the_same() -> None:
    run_clogs(2, _FAULTY, twice=True)


@pytest.mark.slow
@pytest.mark.parametrize("planted", MUTANTS, ids=lambda each: each.plant.__name__)
def test_a_planted_bug_is_caught_by_what_it_breaks(
    planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.plant(monkeypatch)
    others = []
    for seed in promising(planted.first, SEEDS):
        try:
            run_clogs(seed, planted.plan)
        except Violation as violation:
            if violation.harm is planted.harm:
                return
            others.append(violation)
    pytest.fail(f"{planted.harm} was never seen; other failures: {others}")
