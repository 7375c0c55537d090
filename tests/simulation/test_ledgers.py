"""The quorum client under seeded faults keeps its promises; planted bugs are found."""

import pytest

from tests.kits.dlog.ledgers import run
from tests.kits.dlog.ledgers.mutants import MUTANTS
from tests.kits.dlog.violations import assert_caught

SEEDS = 150


def test_faults_break_no_promise() -> None:
    reports = [run(seed).result for seed in range(20)]
    assert sum(report.acked for report in reports) > 200
    assert sum(report.seen for report in reports) > 200


@pytest.mark.slow
def test_many_lives_break_no_promise() -> None:
    reports = [run(seed).result for seed in range(100, 220)]
    # A run in which nothing is replaced or recovered would keep all promises.
    assert sum(report.segments - 1 for report in reports) > 10
    assert sum(report.recoveries for report in reports) > 200


def test_a_seed_repeats_its_run() -> None:
    for seed in range(3):
        run(seed, twice=True)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught_by_what_it_breaks(name: str) -> None:
    mutant = MUTANTS[name]
    assert_caught(mutant.harm, mutant.run, range(mutant.first, mutant.first + SEEDS))
