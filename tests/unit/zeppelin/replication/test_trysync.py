"""What a master answers to what a slave has."""

import pytest

from raftwood.zeppelin.node.seams import BinlogPosition, EpochStart
from raftwood.zeppelin.replication import trysync
from raftwood.zeppelin.replication.trysync import (
    Answer,
    CutAfter,
    FullSync,
    Holding,
    Offer,
    StreamFrom,
    Wait,
    answer,
)

MASTER = Holding(
    epoch=7, first=11, last=30, epochs=(EpochStart(2, 1), EpochStart(5, 15), EpochStart(7, 25))
)


def offer(
    last: int, *epochs: tuple[int, int], first: int = 1, repairing: BinlogPosition | None = None
) -> Offer:
    return Offer(
        epoch=epochs[-1][0] if epochs else 0,
        first=first,
        last=last,
        epochs=tuple(EpochStart(*each) for each in epochs),
        repairing=repairing,
    )


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        (offer(20, (2, 1), (5, 15)), StreamFrom(21)),
        (offer(30, (2, 1), (5, 15), (7, 25)), StreamFrom(31)),
        (offer(10, (2, 1)), StreamFrom(11)),
        (offer(20, (2, 1)), CutAfter(14)),
        (offer(28, (2, 1), (5, 15), (6, 22)), CutAfter(21)),
        (offer(22, (2, 1), (8, 15)), Wait()),
    ],
)
def test_a_slave_goes_on_where_both_are_equal(offered: Offer, expected: Answer) -> None:
    assert answer(offered, MASTER) == expected


@pytest.mark.parametrize(
    "offered",
    [
        offer(9, (2, 1)),
        offer(0),
        offer(28, (2, 1), (3, 5)),
        offer(28, (2, 1), (5, 15), (6, 22), first=23),
        offer(40, (4, 35), first=36),
        offer(20, (2, 1), (5, 15), repairing=BinlogPosition(5, 26)),
        offer(20, (2, 1), (5, 15), repairing=BinlogPosition(7, 31)),
    ],
)
def test_where_records_are_missing_all_of_it_comes_anew(offered: Offer) -> None:
    assert isinstance(answer(offered, MASTER), FullSync)


def test_a_repair_goes_on_with_a_master_that_has_the_position_it_is_up_to() -> None:
    offered = offer(20, (2, 1), (5, 15), repairing=BinlogPosition(7, 28))
    assert answer(offered, MASTER) == StreamFrom(21)


def test_too_long_a_divergence_takes_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trysync, "CUT_RECORDS_MAX", 5)
    assert isinstance(answer(offer(20, (2, 1)), MASTER), FullSync)
