"""Whoever waits for a write hears once that it is done, or that it never will be."""

import random

import pytest

from raftwood.zeppelin.node.data_connection import NOT_ACKED, HeldAnswer, HeldAnswers
from raftwood.zeppelin.records import Acks


def test_everyone_who_waits_is_called_once_and_in_time() -> None:
    source = random.Random(3)
    acks = Acks(is_immediate=False, count=lambda _: 0)
    called: list[int] = []
    expected = source.choices(range(1, 101), k=500)
    for sequence in expected:
        acks.wait(sequence, lambda sequence=sequence: called.append(sequence))  # type: ignore[misc]
    done = 0
    while done < 100:
        done = min(done + source.randint(1, 9), 100)
        acks.reach(done)
        assert sorted(called) == sorted(each for each in expected if each <= done)


def test_the_end_of_a_tenure_is_heard_and_nothing_is_done_by_it() -> None:
    acks = Acks(is_immediate=False, count=lambda sequence: 2 if sequence < 5 else 0)
    acks.reach(3)
    assert acks.replicas_with(3) == 2
    heard: list[bool] = []
    acks.wait(4, lambda: heard.append(acks.is_over))
    acks.end()
    assert heard == [True]
    assert acks.reached == 3
    assert acks.replicas_with(3) == 0


def test_who_leaves_is_not_called_and_not_kept() -> None:
    source = random.Random(5)
    acks = Acks(is_immediate=False, count=lambda _: 0)
    called: list[int] = []
    numbers = {
        acks.wait(sequence, lambda sequence=sequence: called.append(sequence)): sequence  # type: ignore[misc]
        for sequence in range(1, 1001)
    }
    gone = source.sample([*numbers], k=900)
    for number in gone:
        acks.forget(number)
    assert len(acks._waiting) <= 2 * 100 + 64
    assert len(acks._callers) == 100
    acks.reach(1000)
    assert called == sorted(set(numbers.values()) - {numbers[number] for number in gone})


@pytest.mark.parametrize("leaves", ["by its deadline", "by the end of its connection"])
def test_a_client_whose_write_is_never_done_leaves_nothing_behind(leaves: str) -> None:
    acks = Acks(is_immediate=False, count=lambda _: 0)
    for _ in range(1000):
        held = HeldAnswers(lambda: None)
        held.hold(HeldAnswer([b"+OK\r\n"], [(0, acks, 7, False)], deadline=5.0))
        if leaves == "by its deadline":
            assert held.take(5.0) == [NOT_ACKED]
        else:
            held.clear()
    assert not acks._callers
    assert len(acks._waiting) <= 64
