"""The checker of log histories finds each kind of wrong answer."""

import pytest

from tests.logservice_history import History, HistoryWrong, Stored, check_history


def good() -> tuple[History, list[Stored]]:
    """Two clients, one record of unknown fate, one refused, two reads."""
    history = History()
    first = history.append(client=1, payload=b"a", now=1)
    second = history.append(client=1, payload=b"b", now=2)
    first.acked(3, now=3)
    other = history.append(client=2, payload=b"c", now=4)
    history.append(client=1, payload=b"unknown", now=5)
    history.append(client=2, payload=b"refused", now=6).refused()
    second.acked(5, now=7)
    other.acked(6, now=8)
    history.read(1, now=9).answered([(3, b"a"), (5, b"b"), (6, b"c")], 7, now=10)
    history.read(9, now=11).answered([], 9, now=12)
    return history, [(3, b"a"), (5, b"b"), (6, b"c"), (8, b"unknown")]


def test_a_good_history_is_good() -> None:
    history, stored = good()
    check_history(history, stored)
    check_history(history, stored[:-1])
    check_history(history, stored[1:], first=4)


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        ([(3, b"a"), (5, b"b")], "gone"),
        ([(3, b"a"), (5, b"c"), (6, b"b")], "acked was"),
        ([(3, b"a"), (5, b"b"), (6, b"c"), (7, b"a")], "twice"),
        ([(3, b"a"), (5, b"b"), (6, b"c"), (7, b"invented")], "nobody appended"),
        ([(3, b"a"), (5, b"b"), (6, b"c"), (7, b"refused")], "refused"),
        ([(3, b"a"), (6, b"c"), (5, b"b")], "comes after"),
        ([(2, b"unknown"), (3, b"a"), (5, b"b"), (6, b"c")], "acked before it began"),
        ([(3, b"a"), (4, b"unknown"), (5, b"b"), (6, b"c")], "client 1 has LSN 4"),
    ],
)
def test_a_log_that_contradicts_the_answers_is_found(stored: list[Stored], reason: str) -> None:
    with pytest.raises(HistoryWrong, match=reason):
        check_history(good()[0], stored)


def test_the_same_lsn_for_two_records_is_found() -> None:
    history, stored = good()
    history.append(client=3, payload=b"d", now=20).acked(6, now=21)
    with pytest.raises(HistoryWrong, match="two records"):
        check_history(history, stored)


@pytest.mark.parametrize(
    ("first", "records", "next_lsn", "reason"),
    [
        (3, [(3, b"a"), (6, b"c")], 7, "lacks"),
        (3, [(3, b"a"), (4, b"b"), (5, b"b"), (6, b"c")], 7, "has not"),
        (6, [], 6, "missed LSN 6"),
        (6, [], 5, "backwards"),
    ],
)
def test_a_wrong_read_is_found(
    first: int, records: list[Stored], next_lsn: int, reason: str
) -> None:
    history, stored = good()
    history.read(first, now=20).answered(records, next_lsn, now=21)
    with pytest.raises(HistoryWrong, match=reason):
        check_history(history, stored)
