"""Files that are written, rotated and removed while their tailer is killed: each line once."""

import pytest

from tests.kits.clogs.tail.mutants import MUTANTS
from tests.kits.clogs.tail.tail_world import run_world


@pytest.mark.parametrize("seed", range(4, 14))
def test_each_line_is_stored_once_and_in_order_whatever_happens(seed: int) -> None:
    run_world(seed)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch()
