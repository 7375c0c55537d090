"""Shippers and receivers where one thing fails lose nothing, and store nothing twice."""

import pytest

from tests.kits.clogs.simulation import Plan, run_clogs


def test_killed_and_resumed_batches_are_stored_once() -> None:
    plan = Plan(faults_s=12, calm=0.5, move_s=0.3, weather_s=2.0, ring_s=1.0)
    outcome = run_clogs(2, plan).result
    assert outcome.promised > 500
    assert min(outcome.resumed, outcome.retried, outcome.moves, outcome.faults) > 10


@pytest.mark.parametrize("seed", [63, 100, 125])
def test_a_spool_that_had_no_room_when_a_shipper_began_is_shipped_later(seed: int) -> None:
    plan = Plan(faults_s=15, move_s=0.2, weather_s=1.0, ring_s=1.0, calm=0.5)
    assert run_clogs(seed, plan).result.resumed > 100


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
