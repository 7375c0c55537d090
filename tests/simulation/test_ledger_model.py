"""The rules of ledgers under any order of messages keep their promises; planted bugs are found."""

import pytest

from tests.kits.dlog.ledger_model import run
from tests.kits.dlog.ledger_model.mutants import MUTANTS
from tests.kits.dlog.violations import assert_caught

EVENTS = 100_000
MUTANT_EVENTS = 20_000
SEEDS = 200


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
def test_a_planted_bug_is_caught_by_what_it_breaks(name: str) -> None:
    planted = MUTANTS[name]

    def run_once(seed: int) -> None:
        with planted.plant():
            run(seed, MUTANT_EVENTS, **planted.weather)

    assert_caught(planted.harm, run_once, range(SEEDS))
