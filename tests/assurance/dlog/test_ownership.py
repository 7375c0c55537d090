"""One log has one owner that all agree on, whatever comes in between; planted bugs are found."""

import pytest

from tests.kits.dlog.ownership_model import MUTANTS, play


def test_contending_processes_end_with_one_owner_that_all_know() -> None:
    assert sum(play(seed).takeovers for seed in range(100, 400)) > 1_000


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch()
