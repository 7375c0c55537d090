"""The synced end of one store's log is lost without a trace: nothing acked goes with it."""

import pytest

from tests.kits.raft.lost_tails import MUTANTS, run_lost_tail


def test_what_was_acked_is_kept_while_the_other_store_that_has_it_is_up() -> None:
    for seed in range(30):
        run_lost_tail(seed)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch()
