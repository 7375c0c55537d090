"""Shipping rules under seeded failures keep their promises; planted bugs are found."""

import pytest

from tests.kits.clogs.shipping_model import Violation, run
from tests.kits.clogs.shipping_model.mutants import MUTANTS

EVENTS = 20_000
SEEDS = 60


def test_failures_break_no_promise() -> None:
    reports = [run(seed, EVENTS) for seed in range(12)]
    # A run in which nothing goes wrong would keep all promises.
    assert sum(report.stored for report in reports) > 5_000
    assert sum(report.repeated for report in reports) > 5_000
    assert sum(report.dropped for report in reports) > 200
    assert sum(report.refused for report in reports) > 50
    assert sum(report.moved for report in reports) > 200
    assert sum(report.late for report in reports) > 200


@pytest.mark.slow
def test_two_million_events_break_no_promise() -> None:
    assert sum(run(seed, EVENTS).events for seed in range(1_000, 1_100)) >= 2_000_000


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
