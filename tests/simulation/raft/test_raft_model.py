"""Raft's core under seeded faults keeps its promises, and a seed repeats its run."""

from tests.kits.raft.model import run

EVENTS = 25_000


def test_faults_break_no_promise() -> None:
    reports = [run(seed, EVENTS) for seed in range(4)]
    assert sum(report.events for report in reports) >= 4 * EVENTS
    # A run in which nothing happens would keep all promises.
    assert all(report.committed > 50 and report.reads > 10 for report in reports)
    assert any(report.terms > 5 for report in reports)


def test_a_seed_repeats_its_run() -> None:
    assert run(5, 5_000) == run(5, 5_000)
