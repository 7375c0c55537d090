"""Processes that share a log, in virtual time: owners are killed, stopped and cut off by seed."""

import pytest

from tests.kits.dlog.owners import run_owners


@pytest.mark.parametrize("seed", range(2))
def test_what_was_acked_is_there_once_and_in_order_whatever_happens_to_owners(seed: int) -> None:
    report = run_owners(seed)
    assert report.faults > 0
    assert report.acked > 100
