"""Servers' health under seeded failures keeps its promises; planted bugs are found."""

import pytest

from tests.kits.clogs.health_model import Violation, run
from tests.kits.clogs.health_model.mutants import MUTANTS

EVENTS = 20_000
SEEDS = 60


def test_failures_break_no_promise() -> None:
    reports = [run(seed, EVENTS) for seed in range(10)]
    # A run in which nobody is isolated would keep all promises.
    assert sum(report.isolations for report in reports) > 150
    assert sum(report.recoveries for report in reports) > 150
    assert sum(report.panics for report in reports) > 20
    assert sum(report.full for report in reports) > 500


@pytest.mark.slow
def test_two_million_events_break_no_promise() -> None:
    assert sum(run(seed, EVENTS).events for seed in range(1_000, 1_100)) == 2_000_000


def test_a_seed_repeats_its_run() -> None:
    assert run(5, 5_000) == run(5, 5_000)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    with MUTANTS[name]():
        for seed in range(SEEDS):
            try:
                run(seed, 4_000)
            except Violation:
                return
    pytest.fail(f"{name}: not caught within {SEEDS} runs")
