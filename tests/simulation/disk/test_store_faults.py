"""A store on a disk with latency and faults, life after life."""

import pytest

from tests.kits.disk.store_lives import FAILING, run_lives


@pytest.mark.parametrize("seed", range(3))
def test_what_was_acked_outlives_power_cuts_and_full_disks(seed: int) -> None:
    life = run_lives(seed)
    assert life.writes >= life.acks > 0


@pytest.mark.parametrize("seed", range(3))
def test_what_was_acked_outlives_a_failing_disk(seed: int) -> None:
    """Each failure ends the process; what was in flight may be half there."""
    life = run_lives(seed, FAILING)
    assert life.writes >= life.acks > 0
