"""The check of the log service's demo fails where it has to."""

import pytest

from raftwood.logservice.records import Record, RecordKind
from raftwood_demos.log_load import LogAccount, LogCheck, LogVerdict, record_of

HEAD = bytes(12)


def record(lsn: int, writer: int, number: int) -> Record:
    return Record(lsn, RecordKind.USER, HEAD + record_of(writer, number))


def verdict_of(records: list[Record], acked: list[int]) -> LogVerdict:
    account = LogAccount(1)
    account.begin(len(acked))
    account.ack(0, acked)
    check = LogCheck([account])
    check.take(records)
    return check.verdict()


def test_all_that_was_acked_is_there_once_in_order() -> None:
    verdict = verdict_of([record(3, 1, 0), record(5, 1, 1)], [3, 5])
    assert verdict.held
    assert (verdict.found, verdict.acked_found) == (2, 2)


def test_what_was_never_acked_may_be_there_or_not() -> None:
    assert verdict_of([record(3, 1, 0)], [0, 0]).held


@pytest.mark.parametrize(
    ("records", "acked", "problem"),
    [
        pytest.param([record(3, 1, 0)], [3, 5], "missing", id="missing"),
        pytest.param([record(3, 1, 0), record(5, 1, 0)], [3], "twice", id="twice"),
        pytest.param([record(4, 1, 0)], [3], "disordered", id="elsewhere"),
        pytest.param([record(3, 1, 1), record(5, 1, 0)], [5, 3], "disordered", id="out of order"),
        pytest.param([record(3, 2, 0)], [], "wrong", id="of nobody"),
        pytest.param([record(3, 1, 7)], [], "wrong", id="never begun"),
        pytest.param([Record(3, RecordKind.USER, HEAD + b"x")], [], "wrong", id="changed"),
    ],
)
def test_a_record_that_is_not_as_it_was_acked_is_told(
    records: list[Record], acked: list[int], problem: str
) -> None:
    verdict = verdict_of(records, acked)
    assert not verdict.held
    assert getattr(verdict, problem) == 1


def test_a_changed_byte_is_told() -> None:
    data = bytearray(HEAD + record_of(1, 0))
    data[-1] ^= 1
    assert verdict_of([Record(3, RecordKind.USER, bytes(data))], [3]).wrong == 1
