"""The epochs of a binlog, by which a slave finds where to resume (TrySync). No I/O.

TrySync is section 1.3 of Zeppelin's text: a slave offers its offset, and the master sends what
follows. An offset alone does not tell whether the two binlogs are equal up to it. After a failover
the old master has record 100, which no one else got, and the new one has written another record
100: the offsets fit, and the two replicas differ for ever (planted bug "divergence is not undone").

Records of one epoch come from one master, which took none back in that time: so two binlogs that
have a record of the same epoch and sequence are equal up to it, as in raft (§5.3;
`test_binlogs_are_equal_up_to_the_last_record_of_a_common_epoch`). For this rule, a restarted master
writes under another epoch than before, even where the topology has not changed: what it had not
synced may be in a slave's binlog all the same
(`test_a_restarted_master_writes_under_a_later_epoch_and_a_later_master_under_one_above`).
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from raftwood.base.errors import InvariantViolated
from raftwood.zeppelin.records import BinlogPosition, EpochStart

BOOT_BITS: Final = 20
_BOOTS: Final = 1 << BOOT_BITS


def record_epoch(partition_epoch: int, *, boot: int) -> int:
    """The epoch of a master's records: the topology's epoch, and how often the node was started."""
    if not 0 <= boot < _BOOTS:
        raise InvariantViolated(f"boot {boot} of a node is not below {_BOOTS}")
    return partition_epoch << BOOT_BITS | boot


def partition_epoch_of(record_epoch: int) -> int:
    """The topology's epoch in the epoch of a record."""
    return record_epoch >> BOOT_BITS


def epoch_at(epochs: Sequence[EpochStart], sequence: int) -> int:
    """The epoch of the record with a sequence; 0: not known."""
    found = 0
    for start in epochs:
        if start.sequence > sequence:
            break
        found = start.epoch
    return found


def epochs_up_to(epochs: Sequence[EpochStart], sequence: int) -> tuple[EpochStart, ...]:
    """The epochs of the records up to a sequence."""
    return tuple(start for start in epochs if start.sequence <= sequence)


def contains(epochs: Sequence[EpochStart], last: int, position: BinlogPosition) -> bool:
    """Whether a binlog with these epochs and this last sequence has the record."""
    return 0 < position.sequence <= last and epoch_at(epochs, position.sequence) == position.epoch


def common_point(
    one: Sequence[EpochStart], one_last: int, other: Sequence[EpochStart], other_last: int
) -> int | None:
    """Returns the last sequence up to which two binlogs are equal; None if it is no longer known.

    0: they have no record in common, and both know all of their epochs. Where one has forgotten its
    first epochs, "nothing in common" is a guess, and cutting by it could undo what both have
    (`test_what_is_no_longer_known_is_not_taken_for_common`).
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


# The master's answer to a slave's position. No I/O.
#
# A slave must not keep records that its master lacks: it cuts its binlog at the last record that
# both have, takes the master's present values of the keys that the cut records touched, and streams
# on from there. Records hold values and not steps, so once the slave has passed the master's
# position of that moment all its keys are right. Before that its keys are not of one moment: it
# must not become master, and if the next master lacks that position, only a whole copy helps. A
# slave that kept the records would serve them after the next failover: a value comes back whose
# write had failed for its client.

CUT_RECORDS_MAX: Final = 100_000
"""With more records to cut, a whole copy is less than fetching their keys one by one."""


class SyncOffer(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The position of a slave."""

    epoch: int
    """The epoch of its last record."""
    first: int
    last: int
    epochs: tuple[EpochStart, ...]
    repairing: BinlogPosition | None = None


class SyncHolding(msgspec.Struct, frozen=True, kw_only=True):
    """The position of the master."""

    epoch: int
    """The epoch under which it writes now; no record here has a later one."""
    first: int
    last: int
    epochs: Sequence[EpochStart]


class WaitToSync(msgspec.Struct, frozen=True, tag=0, array_like=True):
    """Ask again: one of the two does not know the latest topology yet."""


class StreamFrom(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """The master sends records from a sequence on."""

    sequence: int


class CutAfter(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """Rewind to a sequence with repaired keys, then ask again."""

    sequence: int


class FullSync(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """Fetch a whole copy, then ask again."""

    reason: str


SyncAnswer = WaitToSync | StreamFrom | CutAfter | FullSync


def sync_answer(offer: SyncOffer, holding: SyncHolding) -> SyncAnswer:
    """Returns the next step for a slave to become equal to its master."""
    if offer.epoch > holding.epoch:
        # A later master wrote the slave's records: the asked node is no longer master and does not
        # know it. If it had them cut, acked writes of its successor would be gone.
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
