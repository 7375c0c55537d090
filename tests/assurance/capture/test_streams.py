"""What is captured of a partition, whatever becomes of its masters and of the process."""

import pytest

from tests.kits.capture.mutants import MUTANTS
from tests.kits.capture.story import MUTANTS as OF_STORIES
from tests.kits.capture.story import run_story
from tests.kits.capture.world import run_world


def test_a_stream_has_the_table_in_the_end_and_each_change_once() -> None:
    for seed in range(100, 200):
        run_world(seed)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch(seeds_max=1_000)


def test_what_processes_store_one_after_the_other_is_one_story() -> None:
    assert sum(map(run_story, range(15, 60))) > 2_000


@pytest.mark.parametrize("name", OF_STORIES)
def test_a_planted_bug_of_processes_that_take_over_is_caught(name: str) -> None:
    OF_STORIES[name].catch(seeds_max=1_500)
