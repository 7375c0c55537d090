"""What is captured of a partition, whatever becomes of its masters and of the process."""

from tests.kits.capture.story import run_story
from tests.kits.capture.world import marks_of, run_world


def test_a_stream_has_the_table_in_the_end_and_each_change_once() -> None:
    marks: set[str] = set()
    for seed in range(40):
        marks |= marks_of(run_world(seed))
    wanted = {"set ", "delete ", "flush ", "set repair", "set snapshot", "cut", "partial"}
    assert wanted <= marks, "chance has not shown all of it"


def test_what_processes_store_one_after_the_other_is_one_story() -> None:
    assert sum(map(run_story, range(15))) > 500
