"""Where a slave goes on: what a master answers to what it has. No I/O.

A slave that has records which the master has not must not keep them: it cuts its binlog at the last
record that both have, takes the master's present values of the keys that the cut records touched,
and streams on from there. Writes are absolute, so once it has passed the master's position of that
moment all its keys are right; before that they are of no one moment, and where another master comes
that has not got that position, only a whole copy helps.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from raftwood.zeppelin.node.seams import BinlogPosition, EpochStart
from raftwood.zeppelin.replication.epochs import common_point, contains

CUT_RECORDS_MAX: Final = 100_000
"""Beyond it the keys of the cut records are not fetched one by one."""


class Offer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a slave has."""

    epoch: int
    """Of its last record."""
    first: int
    last: int
    epochs: tuple[EpochStart, ...]
    repairing: BinlogPosition | None = None


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """What the master has."""

    epoch: int
    """Under which it writes now; no record here has a later one."""
    first: int
    last: int
    epochs: Sequence[EpochStart]


class Wait(msgspec.Struct, frozen=True, tag=0, array_like=True):
    """Ask again: one of the two does not know the latest topology yet."""


class StreamFrom(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """Records from a sequence on are on their way."""

    sequence: int


class CutAfter(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """Rewind to a sequence with repaired keys, then ask again."""

    sequence: int


class FullSync(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """Fetch a whole copy, then ask again."""

    reason: str


Answer = Wait | StreamFrom | CutAfter | FullSync


def answer(offer: Offer, holding: Holding) -> Answer:
    """What a slave has to do before it is as the master is."""
    if offer.epoch > holding.epoch:
        # A later master has written this: whoever asks it back is none any more.
        return Wait()
    repairing = offer.repairing
    if repairing is not None and not contains(holding.epochs, holding.last, repairing):
        return FullSync("values that were repaired come from a master whose records are lost")
    common = common_point(offer.epochs, offer.last, holding.epochs, holding.last)
    if common is None or common + 1 < holding.first:
        return FullSync("the records that follow are purged")
    if common == offer.last:
        return StreamFrom(common + 1)
    if common + 1 < offer.first or offer.last - common > CUT_RECORDS_MAX:
        return FullSync("too many records have to be undone")
    return CutAfter(common)
