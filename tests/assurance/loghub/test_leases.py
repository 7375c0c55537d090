"""Workers that share shards keep their ten promises, whatever fails; planted bugs are found."""

from dataclasses import replace

import pytest

from tests.kits.floors import SHARES, under_faults
from tests.kits.loghub.leases import run
from tests.kits.loghub.leases.mutants import MUTANTS
from tests.kits.loghub.leases.profile import Profile


@pytest.mark.parametrize("share", range(SHARES))
def test_faults_break_no_promise(share: int) -> None:
    reports = under_faults(share, run)
    # A run in which nothing moves or fails would keep all promises.
    assert sum(report.steals for report in reports) > 2
    assert sum(report.crashes for report in reports) > 10


@pytest.mark.parametrize("seed", [1_474, 23_756, *range(28_145, 28_150)])
def test_runs_that_once_broke_a_promise_break_none(seed: int) -> None:
    run(seed)


def test_nothing_is_read_twice_where_workers_only_come_and_go() -> None:
    reports = [run(seed, Profile.graceful(seed)) for seed in range(20)]
    assert sum(report.steals for report in reports) > 30
    assert sum(report.duplicates for report in reports) == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_at_any_step_breaks_no_promise(seed: int) -> None:
    profile = replace(Profile.graceful(seed), workers=2, shards=3, chaos_timeouts=2, process_ms=300)
    steps = 1
    while steps < 240:
        run(seed, replace(profile, crash_at=(steps % 2, steps)))
        steps += 5 + seed


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch()


@pytest.mark.parametrize("name", MUTANTS)
def test_the_weather_of_a_planted_bug_breaks_no_promise_without_it(name: str) -> None:
    MUTANTS[name].run(0)
