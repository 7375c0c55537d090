"""Files that are written, rotated and removed while their tailer is killed: each line once."""

import pytest

from tests.unit.clogs.tail.tail_world import run_world


@pytest.mark.parametrize("seed", range(4))
def test_each_line_is_stored_once_and_in_order_whatever_happens(seed: int) -> None:
    run_world(seed)
