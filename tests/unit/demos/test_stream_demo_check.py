"""The check of LogHub's demo fails where it has to."""

import pytest

from raftwood_demos.loghub import StreamAccount, StreamVerdict, contents_of


def verdict_of(seen: list[tuple[str, int]], *, sent: int, acked: list[int]) -> StreamVerdict:
    account = StreamAccount(["k"])
    for _ in range(sent):
        account.next_number("k")
    for number in acked:
        account.ack("k", number)
    for key, number in seen:
        account.see(contents_of(key, number))
    return account.verdict()


def test_all_that_was_acked_is_there_once_in_order() -> None:
    verdict = verdict_of([("k", 0), ("k", 1)], sent=2, acked=[0, 1])
    assert verdict.held
    assert (verdict.found, verdict.acked_found) == (2, 2)


def test_what_was_never_acked_may_be_there_or_not() -> None:
    verdict = verdict_of([("k", 1)], sent=3, acked=[])
    assert verdict.held
    assert (verdict.found, verdict.acked_found) == (1, 0)


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        pytest.param([("k", 0)], "missing", id="missing"),
        pytest.param([("k", 0), ("k", 0), ("k", 1)], "twice", id="twice"),
        pytest.param([("k", 1), ("k", 0)], "disordered", id="out of order"),
        pytest.param([("k", 0), ("k", 1), ("k", 7)], "wrong", id="never sent"),
        pytest.param([("k", 0), ("k", 1), ("other", 0)], "wrong", id="nobody's key"),
    ],
)
def test_what_is_broken_is_counted(seen: list[tuple[str, int]], problem: str) -> None:
    verdict = verdict_of(seen, sent=2, acked=[0, 1])
    assert not verdict.held
    assert getattr(verdict, problem) == 1


def test_a_changed_record_is_nobodys() -> None:
    account = StreamAccount(["k"])
    account.next_number("k")
    account.see(contents_of("k", 0) | {"digest": "0" * 80})
    account.see({"message": "something else"})
    account.see({"key": b"k", "number": b"-1"})
    assert account.verdict().wrong == 3
