"""The mutator is fast, seeded and varied, and `fuzz` reports what repeats a finding."""

import re
import time

import pytest

from raftwood.testing import FuzzFinding, Mutator, fuzz

SEEDS = [b"hello, world", bytes(range(64))]


def first(count: int, seed: int) -> list[bytes]:
    inputs = iter(Mutator(SEEDS, seed=seed))
    return [next(inputs) for _ in range(count)]


def test_inputs_come_from_the_seed() -> None:
    assert first(1000, 1) == first(1000, 1)
    assert first(1000, 1) != first(1000, 2)


def test_inputs_are_varied_and_bounded() -> None:
    inputs = first(5000, 1)
    assert len(set(inputs)) > 3500
    assert min(map(len, inputs)) == 0
    assert max(map(len, inputs)) > 80
    small = iter(Mutator([bytes(100)], seed=1, bytes_max=120))
    assert max(len(next(small)) for _ in range(2000)) == 120


def test_a_finding_can_be_repeated_from_its_report() -> None:
    def parse(data: bytes) -> None:
        if len(data) > 20 and data[3] == 0xFF:
            raise IndexError("broken")
        if not data:
            raise ValueError("empty")

    with pytest.raises(FuzzFinding, match="IndexError: broken") as caught:
        fuzz(parse, SEEDS, count=100_000, seed=5, allowed=(ValueError,))
    found = re.search(r"seed (\d+), iteration (\d+), input ([0-9a-f]+)", str(caught.value))
    assert found is not None
    with pytest.raises(IndexError):
        parse(bytes.fromhex(found[3]))
    with pytest.raises(FuzzFinding):
        fuzz(parse, SEEDS, count=1, seed=int(found[1]), first=int(found[2]))


def test_a_target_that_holds_gives_a_report() -> None:
    def parse(data: bytes) -> None:
        if len(data) % 2:
            raise ValueError("odd")

    report = fuzz(parse, SEEDS, count=2000, seed=1, allowed=(ValueError,))
    assert report.inputs == 2000
    assert 500 < report.accepted < 1900


def test_an_input_that_came_before_is_counted_and_not_tried_again() -> None:
    tried: list[bytes] = []

    def parse(data: bytes) -> None:
        tried.append(data)
        if len(data) % 2:
            raise ValueError("odd")

    report = fuzz(parse, SEEDS, count=5000, seed=1, allowed=(ValueError,))
    made = first(5000, 1)
    assert tried == list(dict.fromkeys(made))
    assert report.tried == len(tried) < report.inputs == 5000
    assert report.accepted == sum(len(data) % 2 == 0 for data in made)


def test_a_hundred_thousand_inputs_take_less_than_a_second() -> None:
    began = time.process_time()
    fuzz(len, SEEDS, count=100_000, seed=1)
    assert time.process_time() - began < 1.0
