"""What changes do to partitions that are split, because their table doubles.

A table is to have twice as many partitions from the moment that this was ordered: each stands at
two places then, and is split in its turn. It is `stuck` as for a hand-over, and goes on as two,
with the same replicas, from the last record that its master wrote before.
"""

from collections.abc import Sequence

import msgspec

from raftwood.base.errors import Conflict, InvalidInput
from raftwood.zeppelin.meta.changes import BeginSplit, CancelSplit, EndSplit
from raftwood.zeppelin.meta.draft import Draft
from raftwood.zeppelin.meta.replica_rules import check_no_handover, check_no_migration
from raftwood.zeppelin.model import Parent, Partition, PartitionState
from raftwood.zeppelin.slots import PARTITIONS_MAX


def unsplit(partitions: Sequence[Partition], asked: int) -> frozenset[int]:
    """The partitions of a table that still stand at two places, where it is to have so many."""
    half = asked // 2
    if len(partitions) >= asked:
        return frozenset()
    split = {each.parent.number for each in partitions[half:] if each.parent is not None}
    return frozenset(range(half)) - split


def check_not_doubling(draft: Draft, table: str) -> None:
    """What a table has is not moved while it doubles."""
    have, asked = len(draft.partitions_of(table)), draft.table(table).config.partitions
    if have < asked:
        raise Conflict(
            f"table {table!r} doubles, and has {have} of its {asked} partitions: wait for that"
        )


def double_partitions(draft: Draft, name: str) -> None:
    table = draft.table(name)
    check_not_doubling(draft, name)
    for number, partition in enumerate(draft.partitions_of(name)):
        check_no_handover(name, number, partition)
        check_no_migration(name, number, partition)
    count = 2 * table.config.partitions
    if count > PARTITIONS_MAX:
        raise InvalidInput(
            f"table {name!r} would have {count} partitions, and has {PARTITIONS_MAX} at the most"
        )
    config = msgspec.structs.replace(table.config, partitions=count)
    draft.tables[name] = msgspec.structs.replace(table, config=config)


def begin_split(draft: Draft, change: BeginSplit) -> None:
    name, number = change.table, change.partition
    before = draft.planned(name, number, change.epoch)
    check_no_handover(name, number, before)
    check_no_migration(name, number, before)
    if not draft.is_up(before.master):
        raise Conflict("there is no master that is up: nothing can be split")
    if number not in unsplit(draft.partitions_of(name), draft.table(name).config.partitions):
        raise Conflict(f"partition {number} of table {name!r} is not to be split")
    draft.change(name, number, state=PartitionState.STUCK, is_splitting=True)


def end_split(draft: Draft, change: EndSplit) -> None:
    name, number = change.table, change.partition
    before = draft.planned(name, number, change.epoch)
    _check_splitting(before)
    parent = Parent(number=number, epoch=change.record_epoch, sequence=change.sequence)
    _go_on(draft, name, number)
    draft.add_partition(name, msgspec.structs.replace(draft.partition(name, number), parent=parent))


def cancel_split(draft: Draft, change: CancelSplit) -> None:
    before = draft.planned(change.table, change.partition, change.epoch)
    _check_splitting(before)
    _go_on(draft, change.table, change.partition)


def _go_on(draft: Draft, table: str, number: int) -> None:
    draft.change(table, number, state=PartitionState.ACTIVE, is_splitting=False)


def _check_splitting(partition: Partition) -> None:
    if not partition.is_splitting:
        raise Conflict("this partition is not being split")
