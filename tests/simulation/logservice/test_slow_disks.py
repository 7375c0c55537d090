"""Slow disks, in virtual time: acks go on, nothing is written twice, leadership does not flap."""

import pytest

from tests.kits.logservice.slow_disks import (
    MUTANTS,
    run_slow_everywhere,
    run_slow_leader,
    run_slow_leader_of_before,
    run_turns,
)


@pytest.mark.parametrize("seed", range(2))
def test_a_leader_whose_disk_is_far_slower_than_the_others_hands_over(seed: int) -> None:
    run_slow_leader(seed)


@pytest.mark.parametrize("seed", range(2))
def test_appends_outlast_slow_disks_and_no_record_comes_into_the_log_twice(seed: int) -> None:
    run_slow_everywhere(seed)
    run_slow_leader_of_before(seed)


def test_leadership_does_not_follow_each_stall() -> None:
    run_turns(0)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch(seeds_max=5)
