"""The epochs of a binlog, and the last record that two binlogs have in common. No I/O.

Records of one epoch come from one master that never took one back while it was that: so two
binlogs that have a record of the same epoch and sequence are equal up to it, as in raft (§5.3).
For that a master that comes up again writes under another epoch than before, even where the
topology has not changed: what it had not synced may be in a slave's binlog all the same.
"""

from collections.abc import Sequence
from typing import Final

from raftwood.base.errors import InvariantViolated
from raftwood.zeppelin.node.seams import BinlogPosition, EpochStart

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
