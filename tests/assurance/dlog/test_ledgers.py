"""The quorum client under seeded faults keeps its promises; planted bugs are found."""

import pytest

from tests.kits.dlog.ledgers import Report, run
from tests.kits.dlog.ledgers.mutants import MUTANTS
from tests.kits.floors import SHARES, is_first, under_faults


def _run_for_long(seed: int) -> Report:
    """Each of a few ledgers is written for long."""
    slow = {"burst": 1, "writer_pause_ms": 1_000, "recover_after_ms": 20_000, "faults": 60}
    return run(seed, twice=is_first(seed), **slow).result


@pytest.mark.parametrize("share", range(SHARES))
def test_faults_break_no_promise_and_a_seed_runs_the_same_twice(share: int) -> None:
    reports = under_faults(share, _run_for_long)
    # A run in which nothing is replaced or recovered would keep all promises.
    assert sum(report.segments - 1 for report in reports) > 0
    assert sum(report.recoveries for report in reports) > 5


def test_many_short_lives_break_no_promise() -> None:
    reports = [run(seed).result for seed in range(100, 140)]
    assert sum(report.recoveries for report in reports) > 60


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught_by_what_it_breaks(name: str) -> None:
    MUTANTS[name].catch()
