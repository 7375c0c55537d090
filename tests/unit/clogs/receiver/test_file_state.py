"""Which batches a plain file has: the last sequences of each producer, within bounds."""

import random

import pytest

from raftwood.base.errors import SequenceForgotten, StoreDamaged, UnsupportedVersion
from raftwood.base.names import STATE_BYTES_MAX
from raftwood.clogs.configuration import FILE_NAME_BYTES_MAX
from raftwood.clogs.file_sink import (
    PRODUCERS_MAX,
    VERSION,
    WINDOW,
    FileState,
    decode_file_state,
    encode_file_state,
)

ONE, TWO = bytes(15) + b"1", bytes(15) + b"2"


def test_what_was_noted_is_known_in_any_order_within_the_window() -> None:
    rng = random.Random(3)
    for _ in range(20):
        state, added = FileState(VERSION, "a", 0), set[int]()
        for _ in range(100):
            top = max(added, default=1)
            sequence = rng.randrange(max(1, top - WINDOW + 1), top + rng.choice((2, 50, 700)))
            state = state.after(0, [(ONE, sequence)])
            added.add(sequence)
            top = max(added)
            for each in rng.choices(range(max(1, top - WINDOW + 1), top + 3), k=20):
                assert state.has(ONE, each) is (each in added)
        assert not state.has(TWO, 1)
        assert decode_file_state(encode_file_state(state)) == state


def test_what_is_too_far_behind_is_not_said_to_be_new() -> None:
    state = FileState(VERSION, "a", 0).after(9, [(ONE, 1), (ONE, WINDOW + 1)])
    assert state.has(ONE, WINDOW + 1)
    assert not state.has(ONE, 2)
    with pytest.raises(SequenceForgotten, match=f"sequence 1 is {WINDOW} behind"):
        state.has(ONE, 1)
    late = state.after(9, [(ONE, 1)])
    with pytest.raises(SequenceForgotten):
        late.has(ONE, 1)


def test_a_sequence_far_ahead_costs_no_memory() -> None:
    state = FileState(VERSION, "a", 0).after(0, [(ONE, 1), (ONE, (1 << 63) - 1), (ONE, 2)])
    assert len(encode_file_state(state)) < 100
    assert state.has(ONE, (1 << 63) - 1)
    assert not state.has(ONE, (1 << 63) - 2)


def test_the_producer_unused_for_longest_is_forgotten() -> None:
    state = FileState(VERSION, "a", 0).after(0, [(ONE, 1), (TWO, 1)])
    others = [(number.to_bytes(16, "big"), 5) for number in range(1000, 1000 + PRODUCERS_MAX - 2)]
    state = state.after(0, [*others, (ONE, 2), (bytes(16), 1)])
    assert len(state.producers) == PRODUCERS_MAX
    assert state.has(ONE, 1)
    assert not state.has(TWO, 1)


def test_a_state_fits_the_log_whatever_was_sent() -> None:
    state = FileState(VERSION, "é" * (FILE_NAME_BYTES_MAX // 2), 1 << 62)
    batches = [
        (number.to_bytes(16, "big"), sequence)
        for number in range(PRODUCERS_MAX)
        for sequence in ((1 << 63) - WINDOW, (1 << 63) - 1)
    ]
    assert len(encode_file_state(state.after(1 << 62, batches))) <= STATE_BYTES_MAX


def test_what_is_no_state_is_told_as_such() -> None:
    with pytest.raises(StoreDamaged):
        decode_file_state(b"\xc1")
    with pytest.raises(UnsupportedVersion):
        decode_file_state(encode_file_state(FileState(VERSION + 1, "a", 0)))
