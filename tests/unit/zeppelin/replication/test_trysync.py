"""What a master answers to what a slave has."""

import pytest

from raftwood.zeppelin.records import BinlogPosition, EpochStart
from raftwood.zeppelin.replication import epochs as epochs_module
from raftwood.zeppelin.replication.epochs import (
    CutAfter,
    FullSync,
    StreamFrom,
    SyncAnswer,
    SyncHolding,
    SyncOffer,
    WaitToSync,
    sync_answer,
)

MASTER = SyncHolding(
    epoch=7, first=11, last=30, epochs=(EpochStart(2, 1), EpochStart(5, 15), EpochStart(7, 25))
)


def offer(
    last: int, *epochs: tuple[int, int], first: int = 1, repairing: BinlogPosition | None = None
) -> SyncOffer:
    return SyncOffer(
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
        (offer(22, (2, 1), (8, 15)), WaitToSync()),
    ],
)
def test_a_slave_goes_on_where_both_are_equal(offered: SyncOffer, expected: SyncAnswer) -> None:
    assert sync_answer(offered, MASTER) == expected


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
def test_where_records_are_missing_all_of_it_comes_anew(offered: SyncOffer) -> None:
    assert isinstance(sync_answer(offered, MASTER), FullSync)


def test_a_repair_goes_on_with_a_master_that_has_the_position_it_is_up_to() -> None:
    offered = offer(20, (2, 1), (5, 15), repairing=BinlogPosition(7, 28))
    assert sync_answer(offered, MASTER) == StreamFrom(21)


def test_too_long_a_divergence_takes_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs_module, "CUT_RECORDS_MAX", 5)
    assert isinstance(sync_answer(offer(20, (2, 1)), MASTER), FullSync)
