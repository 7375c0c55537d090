"""Whoever waits for a write hears once that it is done, or that it never will be."""

import random

from raftwood.zeppelin.node.acks import Acks


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
