"""Raft under seeded faults keeps its promises; planted bugs are found."""

import pytest

from raftwood.base.errors import InvariantViolated
from tests.kits.raft.model import run
from tests.kits.raft.model.mutants import MUTANTS
from tests.kits.raft.model.oracle import Violation

EVENTS = 25_000
SEEDS = 400


@pytest.mark.parametrize("first", range(0, 16, 4))
def test_faults_break_no_promise(first: int) -> None:
    reports = [run(seed, EVENTS) for seed in range(first, first + 4)]
    assert sum(report.events for report in reports) >= 4 * EVENTS
    # A run in which nothing happens would keep all promises.
    assert all(report.committed > 50 and report.reads > 10 for report in reports)
    assert any(report.terms > 5 for report in reports)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1500, 25))
def test_twenty_million_events_break_no_promise(first: int) -> None:
    for seed in range(first, first + 25):
        run(seed, 40_000)


def test_a_seed_repeats_its_run() -> None:
    assert run(5, 5_000) == run(5, 5_000)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    for seed in range(SEEDS):
        try:
            MUTANTS[name].run(seed, 10_000)
        except (Violation, InvariantViolated):
            return
    pytest.fail(f"{name}: not caught within {SEEDS} runs")
