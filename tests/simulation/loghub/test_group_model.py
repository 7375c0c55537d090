"""Consumer groups under seeded faults keep their promises."""

from tests.kits.loghub.group_model import run

EVENTS = 2_000


def test_faults_break_no_promise() -> None:
    reports = [run(seed, EVENTS) for seed in range(20)]
    # A run in which nothing moves, begins or waits would keep all promises.
    assert sum(report.moves for report in reports) > 100
    assert sum(report.begun for report in reports) > 500
    assert sum(report.waited for report in reports) > 200


def test_a_seed_repeats_its_run() -> None:
    assert run(5, 5_000) == run(5, 5_000)
