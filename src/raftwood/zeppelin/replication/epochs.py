"""The epochs of a binlog, and where a slave goes on by them (TrySync). No I/O.

Records of one epoch come from one master that never took one back while it was that: so two binlogs
that have a record of the same epoch and sequence are equal up to it, as in raft (§5.3). For that a
master that comes up again writes under another epoch than before, even where the topology has not
changed: what it had not synced may be in a slave's binlog all the same.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from raftwood.base.errors import InvariantViolated
from raftwood.zeppelin.records import BinlogPosition, EpochStart

BOOT_BITS: Final = 20
_BOOTS: Final = 1 << BOOT_BITS


def record_epoch(partition_epoch: int, *, boot: int) -> int:
    """The epoch of the records of a master: that of the topology, and how often it was started."""
    if not 0 <= boot < _BOOTS:
        raise InvariantViolated(f"boot {boot} of a node is not below {_BOOTS}")
    return partition_epoch << BOOT_BITS | boot


def partition_epoch_of(record_epoch: int) -> int:
    """The epoch of the topology that a master's records came under."""
    return record_epoch >> BOOT_BITS


def epoch_at(epochs: Sequence[EpochStart], sequence: int) -> int:
    """Of the record with a sequence; 0 where it is not known."""
    found = 0
    for start in epochs:
        if start.sequence > sequence:
            break
        found = start.epoch
    return found


def epochs_up_to(epochs: Sequence[EpochStart], sequence: int) -> tuple[EpochStart, ...]:
    """Those of the records up to a sequence."""
    return tuple(start for start in epochs if start.sequence <= sequence)


def contains(epochs: Sequence[EpochStart], last: int, position: BinlogPosition) -> bool:
    """Whether a binlog with these epochs and this last sequence has the record."""
    return 0 < position.sequence <= last and epoch_at(epochs, position.sequence) == position.epoch


def common_point(
    one: Sequence[EpochStart], one_last: int, other: Sequence[EpochStart], other_last: int
) -> int | None:
    """The last sequence up to which two binlogs are equal; None where it is no longer known.

    0: they have no record in common, and both know all of their epochs.
    """
    ranges = {epoch: (first, end) for epoch, first, end in _ranges(other, other_last)}
    best = 0 if _is_complete(one, one_last) and _is_complete(other, other_last) else None
    for epoch, first, end in _ranges(one, one_last):
        if epoch not in ranges:
            continue
        other_first, other_end = ranges[epoch]
        shared = min(end, other_end)
        if shared >= max(first, other_first):
            best = shared
    return best


def _is_complete(epochs: Sequence[EpochStart], last: int) -> bool:
    return epochs[0].sequence == 1 if epochs else last == 0


def _ranges(epochs: Sequence[EpochStart], last: int) -> list[tuple[int, int, int]]:
    """Each epoch with its first and last sequence."""
    ends = [start.sequence - 1 for start in epochs[1:]] + [last]
    return (
        [(start.epoch, start.sequence, end) for start, end in zip(epochs, ends, strict=True)]
        if epochs
        else []
    )


# Where a slave goes on: what a master answers to what it has. No I/O.
#
# A slave that has records which the master has not must not keep them: it cuts its binlog at the
# last
# record that both have, takes the master's present values of the keys that the cut records touched,
# and streams on from there. Writes are absolute, so once it has passed the master's position of
# that
# moment all its keys are right; before that they are of no one moment, and where another master
# comes that has not got that position, only a whole copy helps.

CUT_RECORDS_MAX: Final = 100_000
"""Beyond it the keys of the cut records are not fetched one by one."""


class SyncOffer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a slave has."""

    epoch: int
    """Of its last record."""
    first: int
    last: int
    epochs: tuple[EpochStart, ...]
    repairing: BinlogPosition | None = None


class SyncHolding(msgspec.Struct, frozen=True, kw_only=True):
    """What the master has."""

    epoch: int
    """Under which it writes now; no record here has a later one."""
    first: int
    last: int
    epochs: Sequence[EpochStart]


class WaitToSync(msgspec.Struct, frozen=True, tag=0, array_like=True):
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


SyncAnswer = WaitToSync | StreamFrom | CutAfter | FullSync


def sync_answer(offer: SyncOffer, holding: SyncHolding) -> SyncAnswer:
    """What a slave has to do before it is as the master is."""
    if offer.epoch > holding.epoch:
        # A later master has written this: whoever asks it back is none any more.
        return WaitToSync()
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
