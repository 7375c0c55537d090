"""Which slots a partition had when a record was written, and what it was split off. No I/O."""

from collections.abc import Sequence

from raftwood.zeppelin.client.binlogs import PartitionSlots


def root_of(partitions: Sequence[PartitionSlots], number: int) -> int:
    """The partition that was there from the beginning, of which this one is a part."""
    while (parent := partitions[number].parent) is not None:
        number = parent
    return number


def slots_at(partitions: Sequence[PartitionSlots], number: int, sequence: int) -> range:
    """The slots of a partition when it wrote a record: those of its later parts are among them."""
    own = partitions[number]
    stop = own.stop
    for each in partitions:
        if each.parent == number and each.split_at.sequence >= sequence:
            stop = max(stop, slots_at(partitions, each.number, each.split_at.sequence + 1).stop)
    return range(own.first, stop)
