"""Processes that share a log, in virtual time: owners are killed, stopped and cut off by seed."""

import pytest

from tests.kits.dlog.owners import Report, run_owners
from tests.kits.floors import SHARES, is_first, under_faults


def _run(seed: int) -> Report:
    return run_owners(seed, faults=12, pause_s=0.2, twice=is_first(seed))


@pytest.mark.parametrize("share", range(SHARES))
def test_nothing_acked_is_lost_or_twice_and_a_seed_runs_the_same_twice(share: int) -> None:
    reports = under_faults(share, _run)
    assert sum(report.faults for report in reports) > 10
    assert sum(report.acked for report in reports) > 500
