"""Sessions of one key: whatever order rows come in, and however they are divided."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from raftwood.pipeline.jobs.sessionize import RowSession, SessionRow, closed, with_rows

GAP_MS = 100
TIMES = st.lists(st.integers(min_value=0, max_value=3_000), max_size=40)


def _rows(times: list[int]) -> list[SessionRow]:
    return [SessionRow(time, [float(time)], [str(time)]) for time in times]


def _expected(times: list[int]) -> list[tuple[int, int, int, float]]:
    """Told in another way: cut the sorted times wherever the gap is."""
    found: list[list[int]] = []
    for time in sorted(times):
        if found and time - found[-1][-1] < GAP_MS:
            found[-1].append(time)
        else:
            found.append([time])
    return [(group[0], group[-1], len(group), float(sum(group))) for group in found]


def _figures(sessions: list[RowSession]) -> list[tuple[int, int, int, float]]:
    return [(each.start_ms, each.end_ms, each.rows, each.sums[0]) for each in sessions]


@given(TIMES, st.lists(st.integers(min_value=1, max_value=10), max_size=10))
def test_sessions_are_the_same_however_rows_are_divided(times: list[int], cuts: list[int]) -> None:
    sessions: list[RowSession] = []
    left = list(times)
    for cut in [*cuts, len(times)]:
        sessions = with_rows(sessions, _rows(left[:cut]), GAP_MS)
        sessions = msgspec.json.decode(msgspec.json.encode(sessions), type=list[RowSession])
        left = left[cut:]
    assert _figures(sessions) == _expected(times)
    assert [each.first for each in sessions] == [[str(each.start_ms)] for each in sessions]
    assert [each.last for each in sessions] == [[str(each.end_ms)] for each in sessions]


def test_a_row_in_between_joins_two_sessions() -> None:
    sessions = with_rows([], _rows([0, 150]), GAP_MS)
    assert len(sessions) == 2
    assert _figures(with_rows(sessions, _rows([75]), GAP_MS)) == [(0, 150, 3, 225.0)]


@given(TIMES, st.integers(min_value=0, max_value=4_000))
def test_a_session_is_closed_once_no_row_that_may_come_can_join_it(
    times: list[int], watermark_ms: int
) -> None:
    sessions = with_rows([], _rows(times), GAP_MS)
    over, still = closed(sessions, watermark_ms=watermark_ms, gap_ms=GAP_MS)
    assert over + still == sessions
    before = _figures(over)
    after = with_rows(over, _rows([watermark_ms]), GAP_MS)
    assert _figures(after)[: len(over)] == before
