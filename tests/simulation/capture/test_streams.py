"""What is captured of a partition, whatever becomes of its masters and of the process."""

from tests.kits.capture.world import marks_of, run_world


def test_a_stream_has_the_table_in_the_end_and_each_change_once() -> None:
    marks: set[str] = set()
    for seed in range(40):
        marks |= marks_of(run_world(seed))
    wanted = {"set ", "delete ", "flush ", "set repair", "set snapshot", "cut", "partial"}
    assert wanted <= marks, "chance has not shown all of it"
