"""The client among nodes that die, move and stall, in virtual time: each write is done once."""

import pytest

from tests.kits.zeppelin.simulation.many_calls import MUTANTS, run_client


@pytest.mark.parametrize("seed", [9, 82])
def test_every_write_is_done_once_and_a_seed_runs_the_same_twice(seed: int) -> None:
    # Answers were lost, and what they told of was not done again.
    assert run_client(seed, twice=True).result.answers_lost


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch()
