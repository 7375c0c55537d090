"""Whole nodes in virtual time: what was called done stays, nothing else does, one master serves."""

import pytest

from tests.kits.floors import SHARES, under_faults
from tests.kits.zeppelin.simulation import run
from tests.kits.zeppelin.simulation.mutants import MUTANTS

PACE = 20.0


@pytest.mark.parametrize("share", range(SHARES))
def test_nodes_keep_what_was_done_and_become_equal_whatever_happens(share: int) -> None:
    outcomes = under_faults(share, lambda seed: run(seed, pace=PACE).result)
    assert sum(outcome.failovers for outcome in outcomes) > 0
    assert sum(outcome.handovers for outcome in outcomes) > 0


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_seed_runs_the_same_twice(seed: int) -> None:
    run(seed, twice=True)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught_by_what_it_breaks(name: str) -> None:
    MUTANTS[name].catch()
