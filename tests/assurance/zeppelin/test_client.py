"""The client among nodes that die, move and stall, in virtual time: each write is done once."""

import pytest

from tests.kits.zeppelin.simulation.many_calls import MUTANTS, run_client


@pytest.mark.parametrize("seed", [0, 9, 16])
def test_every_write_is_done_once_whatever_happens_to_nodes_and_connections(seed: int) -> None:
    # Answers were lost, and what they told of was not done again.
    assert run_client(seed, twice=seed == 0).result.answers_lost


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch()
