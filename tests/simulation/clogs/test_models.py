"""Rules of servers' health and of shipping under seeded failures: they keep their promises."""

from tests.kits.clogs.health_model import run as run_health
from tests.kits.clogs.shipping_model import run as run_shipping

EVENTS = 20_000


def test_failures_break_no_promise_of_servers_health() -> None:
    reports = [run_health(seed, EVENTS) for seed in range(6)]
    # A run in which nobody is isolated would keep all promises.
    assert sum(report.isolations for report in reports) > 50
    assert sum(report.recoveries for report in reports) > 50
    assert sum(report.panics for report in reports) > 5
    assert sum(report.full for report in reports) > 100


def test_failures_break_no_promise_of_shipping() -> None:
    reports = [run_shipping(seed, EVENTS) for seed in range(6)]
    # A run in which nothing goes wrong would keep all promises.
    assert sum(report.stored for report in reports) > 2_000
    assert sum(report.repeated for report in reports) > 2_000
    assert sum(report.dropped for report in reports) > 50
    assert sum(report.refused for report in reports) > 10
    assert sum(report.moved for report in reports) > 50
    assert sum(report.followed for report in reports) > 50
    assert sum(report.late for report in reports) > 10


def test_a_seed_repeats_its_run() -> None:
    assert run_health(5, 5_000) == run_health(5, 5_000)
    assert run_shipping(5, 5_000) == run_shipping(5, 5_000)
