"""The benchmark of nodes that join and leave: what belongs to which phase, and how it is shown."""

import array

from benchmarks.zeppelin.growth import Growth, Pace, _Mark, _phases
from benchmarks.zeppelin.growth_load import Said
from benchmarks.zeppelin.growth_report import notes, tables, verdicts

MARKS = [
    _Mark(name="", at_s=10.0),
    _Mark(name="3 nodes", at_s=12.0, masters=[2, 2], replicas=[4, 4]),
    _Mark(
        name="3 → 6",
        at_s=13.0,
        copied_bytes=3_000,
        streamed_bytes=500,
        parked=2,
        moves=2,
        moves_min=2,
        masters=[2, 2, 0],
        replicas=[4, 4, 0],
    ),
]
CALLS = array.array(
    "d", [9.9, 0.5, 10.1, 0.001, 10.6, 0.002, 11.9, 0.009, 12.1, 0.004, 12.2, 0.2, 13.5, 0.5]
)


def growth(**said: object) -> Growth:
    pace = Pace(keys=8, value_bytes=488, partitions=4)
    of_load = Said(**{"calls": 5, "written": 2, "lost": [], "errors": {}} | said)  # type: ignore[arg-type]
    return Growth(pace=pace, disk="ext4", phases=_phases(MARKS, CALLS), said=of_load)


def test_calls_are_counted_to_the_phase_in_which_they_ended() -> None:
    first, second = growth().phases
    assert (first.name, first.calls, first.seconds) == ("3 nodes", 3, 2.0)
    assert first.slots == [2.0, 2.0, 0.0, 2.0]
    assert (first.p50_ms, first.longest_ms) == (2.0, 9.0)
    assert (second.calls, second.p99_ms, second.parked) == (2, 200.0, 2)
    assert second.copied_bytes == 3_000


def test_bytes_are_judged_by_what_has_to_move() -> None:
    found = {each.what: each for each in verdicts(growth())}
    copied = found["3 → 6: bytes copied beside the fewest"]
    assert (copied.measured, copied.is_reached) == (1.5, True)
    assert found["3 → 6: masters of two nodes differ by"].measured == 0
    assert all(each.is_reached for each in found.values())
    missed = [
        each.what for each in verdicts(growth(lost=["k"], errors={"x": 3})) if not each.is_reached
    ]
    assert missed == ["requests that failed", "acked writes lost"]


def test_phases_and_moves_are_shown_and_plotted() -> None:
    shown = tables(growth())
    assert [each.row_count for each in shown] == [2, 1, 2, 5]
    assert "of which 0 failed" in notes(growth())[1]
