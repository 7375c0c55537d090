"""The rules of ledgers under any order of messages keep their promises; planted bugs are found."""

import pytest

from tests.kits.dlog.ledger_model import run
from tests.kits.dlog.ledger_model.mutants import MUTANTS


def test_two_hundred_thousand_events_break_no_promise() -> None:
    assert run(2, 200_000).events >= 200_000


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught_by_what_it_breaks(name: str) -> None:
    MUTANTS[name].catch()
