"""The rules of a log's writers under events in any order; planted bugs are found."""

import pytest

from tests.kits.dlog.log_model import run
from tests.kits.dlog.log_model.mutants import EVENTS, MUTANTS


def test_the_rules_hold_whatever_happens_when() -> None:
    for seed in range(100, 140):
        assert run(seed, EVENTS).takeovers


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught_by_what_it_breaks(name: str) -> None:
    MUTANTS[name].catch()
