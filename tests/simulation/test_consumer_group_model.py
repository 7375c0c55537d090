"""Consumer groups under seeded faults keep their promises; planted bugs are found."""

import pytest

from tests.kits.loghub.group_model import run
from tests.kits.loghub.group_model.mutants import MUTANTS
from tests.kits.loghub.group_model.oracle import Violation

EVENTS = 2_000
SEEDS = 60


def test_faults_break_no_promise() -> None:
    reports = [run(seed, EVENTS) for seed in range(90)]
    # A run in which nothing moves, begins or waits would keep all promises.
    assert sum(report.moves for report in reports) > 600
    assert sum(report.begun for report in reports) > 3_000
    assert sum(report.waited for report in reports) > 1_000


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 1000))
def test_a_million_events_break_no_promise(first: int) -> None:
    events, seed = 0, first
    while events < 1_000_000 // 2:
        events += run(seed, EVENTS).events
        seed += 1


def test_a_seed_repeats_its_run() -> None:
    assert run(5, 5_000) == run(5, 5_000)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    for seed in range(SEEDS):
        try:
            MUTANTS[name].run(seed, EVENTS)
        except Violation:
            return
    pytest.fail(f"{name}: not caught within {SEEDS} runs")
