"""Whole nodes in virtual time: what was called done stays, nothing else does, one master serves."""

import pytest

from tests.kits.floors import SHARES, is_first, under_faults
from tests.kits.zeppelin.simulation import run
from tests.kits.zeppelin.simulation.mutants import MUTANTS

PACE = 10.0


@pytest.mark.parametrize("share", range(SHARES))
def test_nodes_keep_what_was_done_and_a_seed_runs_the_same_twice(share: int) -> None:
    outcomes = under_faults(share, lambda seed: run(seed, pace=PACE, twice=is_first(seed)).result)
    assert sum(outcome.failovers for outcome in outcomes) > 0
    assert sum(outcome.handovers for outcome in outcomes) > 0


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught_by_what_it_breaks(name: str) -> None:
    MUTANTS[name].catch()
