"""HAKeeper under seeded faults keeps its promises, and a seed repeats its run."""

from tests.kits.logservice.hakeeper_model import run

EVENTS = 5_000


def test_faults_break_no_promise() -> None:
    reports = [run(seed, EVENTS) for seed in range(6)]
    assert sum(report.events for report in reports) >= 6 * EVENTS
    # A run in which nothing is ordered would keep all promises.
    assert all(report.orders > 3 for report in reports)
    assert sum(report.orders for report in reports) > 200


def test_a_seed_repeats_its_run() -> None:
    assert run(5, 2_000) == run(5, 2_000)
