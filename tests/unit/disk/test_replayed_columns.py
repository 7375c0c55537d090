"""Runs that came in order are taken as columns, with what the usual way leads to."""

import random

import pytest

from raftwood.base.errors import StoreDamaged
from raftwood.disk.segment_log.format import KIND_HEAD, KIND_RUN, KIND_TAIL
from raftwood.disk.segment_log.scan import Fields, IndexBuilder


def records_of(seed: int) -> list[Fields]:
    """Of two groups, in several segments."""
    rng = random.Random(seed)
    ends = {1: rng.choice([1, 1, 50]), 2: 1}
    begins = dict(ends)
    position = 1 << 32 | 64
    found: list[Fields] = []
    for number in range(rng.randrange(1, 60)):
        group = rng.choice([1, 2])
        size = rng.randrange(200)
        if rng.random() < 0.05:
            position = (position >> 32) + 1 << 32 | 64
        head = (position, KIND_RUN, 0, group)
        if rng.random() < 0.1 and begins[group] < ends[group]:
            cut = rng.randrange(begins[group], ends[group])
            found.append((position, KIND_HEAD, 0, group, 0, cut, 0, b""))
        else:
            count = rng.randrange(1, 4)
            found.append((*head, number // 9 + 1, ends[group], count, bytes(size)))
            ends[group] += count
        position += 48 + size
    return found


def outcome(records: list[Fields], *, is_usual: bool) -> object:
    replay = IndexBuilder()
    replay.take(records)
    if is_usual:
        for rows in replay._groups.values():
            rows.in_order = False
    try:
        groups, live = replay.finish()
    except StoreDamaged as error:
        return error.message
    shown = {
        group: (index.head, index.next_index, list(index.locations()))
        for group, index in groups.items()
    }
    return shown, live.total, [live.of(segment) for segment in range(8)]


@pytest.mark.parametrize("seed", range(200))
def test_both_ways_lead_to_the_same_index(seed: int) -> None:
    records = records_of(seed)
    assert outcome(records, is_usual=False) == outcome(records, is_usual=True)


def test_a_cut_end_is_followed_by_other_runs() -> None:
    records: list[Fields] = [
        (64, KIND_RUN, 0, 1, 1, 1, 3, b"abc"),
        (200, KIND_RUN, 0, 1, 1, 4, 3, b"def"),
        (300, KIND_TAIL, 0, 1, 0, 4, 0, b""),
        (400, KIND_RUN, 0, 1, 2, 4, 1, b"x"),
    ]
    found = outcome(records, is_usual=False)
    assert found == outcome(records, is_usual=True)
    assert isinstance(found, tuple)
    assert found[0][1][1] == 5
