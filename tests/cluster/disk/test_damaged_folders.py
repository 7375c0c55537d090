"""Damaged files of real processes: a part of what `python -m tests.damage --real` prints."""

import pytest

from tests.damage.cells import Cell, Outcome
from tests.damage.matrix import command, real_cells


@pytest.mark.parametrize(
    ("cell", "outcome"),
    [
        (Cell("store", "newest segment", "deleted", "one"), Outcome.REPAIRED),
        (Cell("bookie", "newest segment", "deleted", "one"), Outcome.REFUSED),
    ],
    ids=str,
)
def test_what_was_acked_is_left_when_a_real_file_is_damaged(cell: Cell, outcome: Outcome) -> None:
    with real_cells() as run:
        seen = run(cell, 0)
    assert seen.outcome is outcome, (seen, command(cell, 0, is_real=True))
