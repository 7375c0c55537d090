"""HAKeeper under seeded faults keeps its promises; planted bugs are found."""

import pytest

from tests.kits.logservice.hakeeper_model import run
from tests.kits.logservice.hakeeper_model.groups import Violation
from tests.kits.logservice.hakeeper_model.mutants import MUTANTS

EVENTS = 10_000
SEEDS = 60


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_faults_break_no_promise(first: int) -> None:
    reports = [run(seed, EVENTS) for seed in range(first, first + 20)]
    assert sum(report.events for report in reports) >= 20 * EVENTS
    # A run in which nothing is ordered would keep all promises.
    assert all(report.orders > 3 for report in reports)
    assert sum(report.orders for report in reports) > 2_000


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1400, 100))
def test_a_million_events_break_no_promise(first: int) -> None:
    events, seed = 0, first
    while events < 1_000_000 // 4:
        events += run(seed, EVENTS).events
        seed += 1


def test_a_seed_repeats_its_run() -> None:
    assert run(5, 5_000) == run(5, 5_000)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    for seed in range(SEEDS):
        try:
            MUTANTS[name].run(seed, 4_000)
        except Violation:
            return
    pytest.fail(f"{name}: not caught within {SEEDS} runs")
