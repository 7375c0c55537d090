"""What each producer has written, against a plain dictionary, and its snapshots."""

import random

import pytest

from raftwood.base.errors import SequenceForgotten, StoreDamaged
from raftwood.base.position import Position, position_of_entry
from raftwood.dlog.log import producers as module
from raftwood.dlog.log.producers import WINDOW, DlogProducers


def test_sequences_in_any_order_are_found_where_they_stand() -> None:
    rng = random.Random(1)
    table, model = DlogProducers(), dict[tuple[bytes, int], Position]()
    position = 0
    tops: dict[bytes, int] = {}
    for _ in range(20_000):
        name = rng.choice([b"a", b"b", b"c"])
        sequence = max(0, tops.get(name, 0) + rng.randint(-20, 3))
        if (name, sequence) in model:
            if sequence > tops[name] - WINDOW:
                assert table.find(name, sequence) == model[name, sequence]
            continue
        assert table.find(name, sequence) is None
        position += rng.choice([1, 1, 1 << 16, 1 << 64])
        table.add(name, sequence, Position(position))
        model[name, sequence] = Position(position)
        tops[name] = max(tops.get(name, 0), sequence)
        if rng.random() < 0.1:
            table.remove(name, sequence)
            del model[name, sequence]
        if rng.random() < 0.01:
            table = _copied(table, rng.choice([1, 1000, 1 << 20]))
    for (name, sequence), where in model.items():
        if sequence > tops[name] - WINDOW:
            assert table.find(name, sequence) == where
        else:
            with pytest.raises(SequenceForgotten):
                table.find(name, sequence)


def _copied(table: DlogProducers, bytes_max: int) -> DlogProducers:
    copy = DlogProducers()
    copy.load(list(table.pieces(bytes_max)))
    assert len(copy) == len(table)
    return copy


def test_one_who_writes_an_entry_at_a_time_takes_one_run() -> None:
    table = DlogProducers()
    for number in range(5_000):
        table.add(b"a", number, position_of_entry(ledger=7, entry=number))
    assert sum(len(piece) for piece in table.pieces(1 << 20)) < 100
    assert table.find(b"a", 4_999) == position_of_entry(ledger=7, entry=4_999)


def test_a_message_that_came_again_in_the_next_ledger_is_found_there() -> None:
    table = DlogProducers()
    for number in range(10):
        table.add(b"a", number, position_of_entry(ledger=1, entry=number))
    for number in range(6, 10):
        table.add(b"a", number, position_of_entry(ledger=2, entry=number - 6))
    for copy in (table, _copied(table, 1)):
        assert copy.find(b"a", 5) == position_of_entry(ledger=1, entry=5)
        for number in range(6, 10):
            assert copy.find(b"a", number) == position_of_entry(ledger=2, entry=number - 6)


def test_the_producer_unused_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRODUCERS_MAX", 3)
    table = DlogProducers()
    for name in (b"a", b"b", b"c"):
        table.add(name, 1, Position(1))
    table.add(b"a", 2, Position(2))
    table.add(b"d", 1, Position(3))
    assert table.find(b"b", 1) is None
    assert table.find(b"a", 1) == 1


def test_a_damaged_snapshot_is_refused() -> None:
    with pytest.raises(StoreDamaged):
        DlogProducers().load([b"\x91\x01"])
