"""Names of requests that are known, for how long, and of whom."""

import random

import pytest

from raftwood.zeppelin.node import engine as module
from raftwood.zeppelin.node.engine import KEPT_OF_PRODUCER, Origins

MAX = 200


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ORIGINS_MAX", MAX)


def test_who_writes_little_is_known_however_much_others_write() -> None:
    origins = Origins()
    for number in range(KEPT_OF_PRODUCER):
        origins.add((b"quiet", number), number)
    for number in range(10 * MAX):
        origins.add((b"busy", number), KEPT_OF_PRODUCER + number)
    assert all(
        origins.sequence_of((b"quiet", number)) == number for number in range(KEPT_OF_PRODUCER)
    )
    known = [number for number in range(10 * MAX) if origins.sequence_of((b"busy", number))]
    assert known == list(range(9 * MAX, 10 * MAX))


def test_of_many_who_write_little_the_last_ones_are_known() -> None:
    origins = Origins()
    for number in range(5 * MAX):
        origins.add((b"%d" % number, 0), number)
    known = [n for n in range(5 * MAX) if origins.sequence_of((b"%d" % n, 0)) is not None]
    assert known == list(range(3 * MAX, 5 * MAX))


def test_the_last_ones_of_a_producer_stay_though_their_records_are_purged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    origins = Origins()
    origins.add((b"quiet", 9), 1)
    for number in range(KEPT_OF_PRODUCER + 4):
        origins.add((b"busy", number), 2 + number)
    last = KEPT_OF_PRODUCER + 5
    assert origins.forget_before(1) is None
    kept = origins.forget_before(last + 1)
    assert kept == {
        1: (b"quiet", 9),
        **{2 + number: (b"busy", number) for number in range(4, KEPT_OF_PRODUCER + 4)},
    }
    assert origins.forget_before(last + 1) is None
    assert origins.sequence_of((b"busy", 3)) is None
    monkeypatch.setattr(module, "PURGED_MAX", 2)
    assert origins.forget_before(last) == {last - 1: (b"busy", KEPT_OF_PRODUCER + 2)}
    assert origins.sequence_of((b"quiet", 9)) is None


@pytest.mark.parametrize("seed", range(5))
def test_what_did_not_happen_is_forgotten_and_nothing_late(seed: int) -> None:
    chance = random.Random(seed)
    origins = Origins()
    first, last, numbers = 1, 0, 0
    added: dict[tuple[bytes, int], int] = {}
    for _ in range(3_000):
        draw = chance.random()
        if draw < 0.01 and last > first:
            first = chance.randint(first, min(first + 50, last))
            origins.forget_before(first)
        elif draw < 0.02 and last > first:
            last = chance.randint(max(first, last - 50), last)
            origins.forget_after(last)
        else:
            last, numbers = last + 1, numbers + 1
            origin = (chance.choice((b"a", b"a", b"a", b"b")), numbers)
            origins.add(origin, last)
            added[origin] = last
        added = {each: at for each, at in added.items() if at <= last}
    for origin, sequence in added.items():
        found = origins.sequence_of(origin)
        assert found in (sequence, None)
        if sequence >= first and sequence > last - MAX // 4:
            assert found == sequence
    assert all(
        origins.sequence_of((who, n)) is None
        for who in (b"a", b"b")
        for n in range(numbers + 1)
        if (who, n) not in added
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_largest_number_of_a_producer_is_that_of_those_that_are_known(seed: int) -> None:
    chance = random.Random(seed)
    origins, sequence = Origins(), 0
    names = [b"a", b"b", b"c"]
    numbers = dict.fromkeys(names, 0)
    for _ in range(3 * MAX):
        sequence += 1
        name = chance.choice(names)
        numbers[name] += chance.randrange(-1, 5)
        origins.add((name, numbers[name]), sequence)
        if not chance.randrange(50):
            origins.forget_before(chance.randrange(sequence))
        if not chance.randrange(50):
            sequence -= chance.randrange(min(sequence, 20))
            origins.forget_after(sequence)
        for each in names:
            known = [number for producer, number in origins._sequences if producer == each]
            assert origins.last_number(each) == max(known, default=None)
