"""What changes do to the replicas of one partition: masters, slaves, hand-overs.

A hand-over: the partition is `stuck` and names its target, so the master takes no more writes; once
it says so, and how far it came, and the target is as far, one change makes the target the master.
"""

from typing import Any

from raftwood.base.errors import AlreadyExists, Conflict, InvalidInput, NotFound
from raftwood.zeppelin.meta.changes import (
    AddSlave,
    BeginHandover,
    CancelHandover,
    ChangeMaster,
    EndHandover,
    ForceMaster,
    MarkSlaves,
    RemoveSlave,
    SetMaster,
)
from raftwood.zeppelin.meta.draft import Draft
from raftwood.zeppelin.model import REPLICAS_MAX, NodeId, Partition, PartitionState


def change_master(draft: Draft, change: ChangeMaster) -> None:
    before = draft.planned(change.table, change.partition, change.epoch)
    old, new = before.master, change.master
    if new is not None and draft.is_up(old):
        raise Conflict(f"{old!r} is up and master: its writes have to be handed over")
    lagging = (*before.lagging, *change.lagging)
    if new is not None:
        _check_can_lead(draft, before, new)
        if change.run is not None and draft.node(new).run != change.run:
            raise Conflict(f"node {new!r} has started anew since it told how far it is")
        # What the old one has written last, nobody may have.
        lagging = (*lagging, old) if old is not None else lagging
    _set_master(draft, change.table, change.partition, new, lagging)


def force_master(draft: Draft, change: ForceMaster) -> None:
    before = draft.partition(change.table, change.partition)
    if before.master is not None:
        raise Conflict(f"{before.master!r} is master: only a partition without one can be forced")
    _check_can_lead(draft, before, change.node)
    _set_master(draft, change.table, change.partition, change.node, before.slaves)


def demote_restarted(draft: Draft, node: NodeId) -> None:
    """A node that has started anew may have lost what was not synced, and others may have it: its
    partitions go to whoever is ahead, itself perhaps, at another epoch than it wrote at before.
    """
    for name, number, before in [*draft.all_partitions()]:
        if before.master == node:
            _set_master(draft, name, number, None, before.lagging)
        elif before.target == node:
            draft.change(name, number, state=PartitionState.ACTIVE, target=None)


def _set_master(
    draft: Draft, table: str, number: int, master: NodeId | None, lagging: tuple[NodeId, ...]
) -> None:
    """Make it so, end what is under way, and keep the marks of those that are slaves then."""
    before = draft.partition(table, number)
    slaves = tuple(each for each in before.replicas if each != master)
    draft.change(
        table,
        number,
        master=master,
        slaves=slaves,
        state=PartitionState.ACTIVE,
        target=None,
        is_splitting=False,
        lagging=tuple(each for each in slaves if each in lagging),
        unproven=tuple(each for each in slaves if each in before.unproven),
    )


def _check_can_lead(draft: Draft, partition: Partition, node: NodeId) -> None:
    if node not in partition.slaves:
        raise NotFound(f"node {node!r} has no replica of this partition that could become master")
    if not draft.is_up(node):
        raise Conflict(f"node {node!r} is down: only one that is up can be master")


def mark_slaves(draft: Draft, change: MarkSlaves) -> None:
    before = draft.planned(change.table, change.partition, change.epoch)
    lagging = tuple(each for each in before.slaves if each in change.lagging)
    # Once shown it stays so: only what is unproven already can still be that.
    unproven = tuple(each for each in before.unproven if each in change.unproven)
    draft.change(change.table, change.partition, lagging=lagging, unproven=unproven)


def begin_handover(draft: Draft, change: BeginHandover) -> None:
    before = draft.planned(change.table, change.partition, change.epoch)
    if before.target != change.target or before.state is PartitionState.STUCK:
        check_no_handover(change.table, change.partition, before)
    _check_can_lead(draft, before, change.target)
    if not draft.is_up(before.master):
        raise Conflict("there is no master that is up: nothing can be handed over")
    draft.change(change.table, change.partition, state=PartitionState.STUCK, target=change.target)


def end_handover(draft: Draft, change: EndHandover) -> None:
    before = draft.planned(change.table, change.partition, change.epoch)
    target = _target(before)
    if before.state is not PartitionState.STUCK:
        raise Conflict("the master is not frozen: it may have more than its slave")
    _check_can_lead(draft, before, target)
    _set_master(draft, change.table, change.partition, target, before.lagging)


def cancel_handover(draft: Draft, change: CancelHandover) -> None:
    before = draft.planned(change.table, change.partition, change.epoch)
    _target(before)
    draft.change(change.table, change.partition, state=PartitionState.ACTIVE, target=None)


def _target(partition: Partition) -> NodeId:
    if partition.target is None:
        raise Conflict("no hand-over of this partition is under way")
    return partition.target


def check_no_handover(table: str, number: int, partition: Partition) -> None:
    if partition.is_splitting:
        raise Conflict(f"partition {number} of table {table!r} is being split: try again")
    if partition.state is not PartitionState.ACTIVE:
        raise Conflict(
            f"partition {number} of table {table!r} is being handed over to "
            f"{partition.target!r}: try again in a moment"
        )


def check_no_migration(table: str, number: int, partition: Partition) -> None:
    if (found := partition.migration) is not None:
        raise Conflict(
            f"partition {number} of table {table!r} moves from {found.source!r} to "
            f"{found.target!r}: wait for that, or cancel it"
        )


def set_master(draft: Draft, change: SetMaster) -> None:
    """The keeper does the rest, as soon as the slave is close."""
    before = draft.partition(change.table, change.partition)
    if change.node not in before.replicas:
        raise NotFound(f"node {change.node!r} has no replica of this partition: add it as a slave")
    if any(each.source == change.node for each in before.migrations):
        check_no_migration(change.table, change.partition, before)
    draft.change(change.table, change.partition, preferred=change.node)


def add_slave(draft: Draft, change: AddSlave) -> None:
    before = draft.partition(change.table, change.partition)
    check_no_handover(change.table, change.partition, before)
    check_no_migration(change.table, change.partition, before)
    if change.node in before.replicas:
        raise AlreadyExists(f"node {change.node!r} has a replica of this partition already")
    if not draft.node(change.node).is_up:
        raise Conflict(f"node {change.node!r} is down: start it first")
    if len(before.replicas) >= REPLICAS_MAX:
        raise InvalidInput(f"the partition has {REPLICAS_MAX} replicas: remove one first")
    draft.change(
        change.table,
        change.partition,
        slaves=(*before.slaves, change.node),
        lagging=(*before.lagging, change.node),
    )


def remove_slave(draft: Draft, change: RemoveSlave) -> None:
    before = draft.partition(change.table, change.partition)
    check_no_handover(change.table, change.partition, before)
    check_no_migration(change.table, change.partition, before)
    if change.node == before.master:
        raise Conflict(f"node {change.node!r} is master: make another one master first")
    if change.node not in before.slaves:
        raise NotFound(f"node {change.node!r} is no slave of this partition: check its name")
    if before.master is None:
        raise Conflict("the partition has no master: this may be the best replica that there is")
    least = draft.table(change.table).config.min_replicas
    if len(before.replicas) <= least:
        raise Conflict(f"each write needs {least} replicas: add another slave first")
    leave(draft, change.table, change.partition, change.node)


def leave(draft: Draft, table: str, number: int, slave: NodeId, **fields: Any) -> None:
    """A slave is none any more; the partition gets other fields with that."""
    before = draft.partition(table, number)
    slaves = tuple(each for each in before.slaves if each != slave)
    is_preferred = before.preferred == slave
    draft.change(
        table,
        number,
        slaves=slaves,
        lagging=tuple(each for each in before.lagging if each != slave),
        # The master and the one that goes may be all that have some acked write.
        unproven=slaves if draft.table(table).config.min_replicas > 1 else (),
        **{"preferred": before.master if is_preferred else before.preferred} | fields,
    )
