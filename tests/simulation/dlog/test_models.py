"""Ledgers and logs under small seeded runs keep their promises."""

import pytest

from tests.kits.dlog.ledger_model import run as run_ledger_model
from tests.kits.dlog.ledgers import run as run_ledgers
from tests.kits.dlog.log_model import run as run_log_model
from tests.kits.dlog.simulation import run_dlog
from tests.kits.dlog.simulation.mutants import SMALL


def test_any_order_of_messages_breaks_no_promise_of_ledgers() -> None:
    report = run_ledger_model(1, 100_000)
    # A run in which nothing is acked, changed or found would keep all promises.
    assert report.acked > 2_000
    assert report.changes > 100
    assert report.recovered > 300


def test_a_bookie_that_began_anew_breaks_no_promise_of_ledgers() -> None:
    report = run_ledger_model(2, 50_000, is_one_wiped=True, is_one_damaged=False)
    assert report.acked > 1_000
    assert report.recovered > 100


def test_a_seed_repeats_its_run() -> None:
    assert run_ledger_model(5, 10_000) == run_ledger_model(5, 10_000)


def test_faults_break_no_promise_of_the_quorum_client() -> None:
    reports = [run_ledgers(seed).result for seed in range(20)]
    assert sum(report.acked for report in reports) > 200
    assert sum(report.seen for report in reports) > 200


def test_wiped_bookies_are_repaired_and_no_acked_entry_is_lost() -> None:
    # The last ones showed doubts without an end, and a recovery that goes on during a repair.
    seeds = (*range(20), 124, 181, 271, 3771)
    reports = [run_ledgers(seed, wipes=4, is_corrupt=False).result for seed in seeds]
    assert sum(report.acked for report in reports) > 200
    assert sum(report.repaired for report in reports) > 200


def test_the_rules_of_writers_hold_whatever_happens_when() -> None:
    for seed in range(10):
        assert run_log_model(seed, 3_000).takeovers


@pytest.mark.parametrize("seed", range(2))
def test_every_acked_message_is_there_once_in_order_and_without_a_hole(seed: int) -> None:
    report = run_dlog(seed, SMALL)
    assert report.acked
    assert report.takeovers > 20
