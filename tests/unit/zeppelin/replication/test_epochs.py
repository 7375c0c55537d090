"""The epochs of binlogs: what two of them have in common."""

import random

import pytest

from raftwood.base.errors import InvariantViolated
from raftwood.zeppelin.records import BinlogPosition, EpochStart
from raftwood.zeppelin.replication.epochs import (
    common_point,
    contains,
    epoch_at,
    epochs_up_to,
    partition_epoch_of,
    record_epoch,
)


def starts(epochs: list[int], first: int = 1) -> list[EpochStart]:
    """Of a binlog whose records have these epochs."""
    found: list[EpochStart] = []
    for sequence, epoch in enumerate(epochs, first):
        if not found or found[-1].epoch != epoch:
            found.append(EpochStart(epoch, sequence))
    return found


def test_a_restarted_master_writes_under_a_later_epoch_and_a_later_master_under_one_above() -> None:
    assert record_epoch(3, boot=1) < record_epoch(3, boot=2) < record_epoch(4, boot=1)
    assert partition_epoch_of(record_epoch(7, boot=9)) == 7
    with pytest.raises(InvariantViolated):
        record_epoch(1, boot=1 << 20)


def test_the_epoch_of_a_record_is_that_which_began_last() -> None:
    epochs = starts([1, 1, 4, 4, 9])
    assert [epoch_at(epochs, sequence) for sequence in range(7)] == [0, 1, 1, 4, 4, 9, 9]
    assert epochs_up_to(epochs, 2) == (EpochStart(1, 1),)
    assert contains(epochs, 5, BinlogPosition(4, 4))
    assert not contains(epochs, 5, BinlogPosition(4, 5))
    assert not contains(epochs, 5, BinlogPosition(9, 6))


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ([1, 1, 1], [1, 1, 1], 3),
        ([1, 1, 1], [1, 1], 2),
        ([1, 1, 2], [1, 1, 3, 3], 2),
        ([1, 2, 2], [1, 2, 2, 5], 3),
        ([1], [2], 0),
        ([], [4, 4], 0),
        ([], [], 0),
    ],
)
def test_binlogs_are_equal_up_to_the_last_record_of_a_common_epoch(
    one: list[int], other: list[int], common: int
) -> None:
    assert common_point(starts(one), len(one), starts(other), len(other)) == common
    assert common_point(starts(other), len(other), starts(one), len(one)) == common


def test_what_is_no_longer_known_is_not_taken_for_common() -> None:
    assert common_point([EpochStart(5, 90)], 99, [EpochStart(1, 1)], 10) is None
    assert common_point([EpochStart(5, 90)], 99, [EpochStart(5, 80), EpochStart(6, 95)], 97) == 94


def test_the_common_point_is_that_of_the_records_whatever_masters_did() -> None:
    for seed in range(300):
        source = random.Random(seed)
        logs: list[list[int]] = [[], [], []]
        for epoch in range(1, 12):
            leader = source.randrange(3)
            logs[leader] += [epoch] * source.randrange(1, 4)
            for follower in range(3):
                if source.random() < 0.6:
                    kept = source.randint(0, len(logs[leader]))
                    shared = next(
                        (
                            index
                            for index, (mine, its) in enumerate(
                                zip(logs[follower], logs[leader], strict=False)
                            )
                            if mine != its
                        ),
                        min(len(logs[follower]), len(logs[leader])),
                    )
                    logs[follower] = logs[leader][: max(shared, kept)]
        one, other = logs[0], logs[1]
        expected = 0
        while expected < min(len(one), len(other)) and one[expected] == other[expected]:
            expected += 1
        assert common_point(starts(one), len(one), starts(other), len(other)) == expected, seed
