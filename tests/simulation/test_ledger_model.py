"""The rules of ledgers under any order of messages keep their promises; planted bugs are found."""

import pytest

from tests.simulation.ledger_model import run
from tests.simulation.ledger_model.mutants import MUTANTS, WEATHER
from tests.simulation.ledger_model.oracle import Violation

EVENTS = 100_000
SEEDS = 40


def test_any_order_of_messages_breaks_no_promise() -> None:
    report = run(1, EVENTS)
    # A run in which nothing is acked, changed or found would keep all promises.
    assert report.acked > 2_000
    assert report.changes > 100
    assert report.recovered > 300


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_a_million_events_break_no_promise(seed: int) -> None:
    assert run(seed, 500_000).events >= 500_000


def test_a_seed_repeats_its_run() -> None:
    assert run(5, 10_000) == run(5, 10_000)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    for seed in range(SEEDS):
        try:
            with MUTANTS[name]():
                run(seed, EVENTS, **WEATHER.get(name, {}))
        except Violation:
            return
    pytest.fail(f"{name}: not caught within {SEEDS} runs")
