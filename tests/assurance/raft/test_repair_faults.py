"""Repairs while stores crash: whatever is damaged and whoever goes, nothing acked is lost."""

import pytest

from tests.kits.raft.repairs import run_repairs


@pytest.mark.parametrize("seed", range(1, 5))
def test_repairs_under_crashes_lose_nothing(seed: int) -> None:
    assert run_repairs(seed) > 100
