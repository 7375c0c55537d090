"""Consumer groups of several gateways: one reader for a shard, nothing lost, keys in order."""

import pytest

from tests.kits.floors import SHARES, is_first, under_faults
from tests.kits.loghub.groups import Weather, run_groups
from tests.kits.loghub.groups.mutants import MUTANTS


@pytest.mark.parametrize("share", range(SHARES))
def test_faults_break_no_promise_and_a_seed_runs_the_same_twice(share: int) -> None:
    reports = under_faults(share, lambda seed: run_groups(seed, twice=is_first(seed)))
    assert sum(report.put for report in reports) > 1_000
    assert sum(report.consumers for report in reports) > 6


@pytest.mark.parametrize("seed", range(200, 203))
def test_nothing_is_read_twice_where_nobody_crashes(seed: int) -> None:
    calm = Weather(slow=0.02, join=0.2, leave=0.15, reshard=0.2)
    assert run_groups(seed, calm).doubles == 0


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch()
