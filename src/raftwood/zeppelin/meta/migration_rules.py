"""What changes do to a migration: it is ordered, its target becomes a slave, its source leaves.

Between the last two the master is handed over, if the source is that: as any master is. The order
is a part of the partition, and so outlives whoever leads; `migration` plans the steps.
"""

from raftwood.base.errors import AlreadyExists, Conflict, NotFound
from raftwood.zeppelin.meta.changes import (
    AddTarget,
    CancelMigration,
    EndMigration,
    Migrate,
    RemoveTarget,
    SlowDown,
)
from raftwood.zeppelin.meta.draft import Draft
from raftwood.zeppelin.meta.replica_rules import check_no_handover, check_no_migration, leave
from raftwood.zeppelin.meta.split_rules import check_not_doubling
from raftwood.zeppelin.model import Migration, NodeId, Partition, PartitionState


def check_none_in(draft: Draft, table: str) -> None:
    """No partition of a table may be moving."""
    for number in range(len(draft.table(table).partitions)):
        check_no_migration(table, number, draft.partition(table, number))


def migrate(draft: Draft, change: Migrate) -> None:
    name, number = change.table, change.partition
    before = draft.partition(name, number)
    check_not_doubling(draft, name)
    source, target = change.source, change.target
    together = before.migrations
    if any(
        each.plan != draft.epoch or source == each.source or target == each.target
        for each in together
    ):
        check_no_migration(name, number, before)
    if source not in before.replicas:
        raise NotFound(f"node {source!r} has no replica of partition {number} of table {name!r}")
    if target in before.replicas:
        raise AlreadyExists(f"node {target!r} has partition {number} of table {name!r} already")
    node = draft.node(target)
    if not node.is_up:
        raise Conflict(f"node {target!r} is down: start it first")
    if node.is_draining:
        raise Conflict(f"node {target!r} is to be emptied: let it have something again first")
    first, *others = (
        *together,
        Migration(source=source, target=target, plan=draft.epoch, of=change.of),
    )
    draft.change(
        name,
        number,
        migration=first,
        migrations_next=tuple(others),
        # It goes where the source's replica goes.
        preferred=target if before.preferred == source else before.preferred,
    )


def add_target(draft: Draft, change: AddTarget) -> None:
    before = draft.planned(change.table, change.partition, change.epoch)
    target = _migration(before).target
    if target in before.replicas:
        raise AlreadyExists(f"node {target!r} has a replica of this partition already")
    if not draft.is_up(target):
        raise Conflict(f"node {target!r} is down: the migration waits for it")
    if before.state is not PartitionState.ACTIVE:
        raise Conflict("the partition is being handed over: the migration waits for that")
    draft.change(
        change.table,
        change.partition,
        slaves=(*before.slaves, target),
        lagging=(*before.lagging, target),
    )


def remove_target(draft: Draft, change: RemoveTarget) -> None:
    before = draft.planned(change.table, change.partition, change.epoch)
    target = _migration(before).target
    check_no_handover(change.table, change.partition, before)
    if target not in before.slaves or draft.is_up(target):
        raise Conflict(f"node {target!r} is up, or no slave: there is nothing to wait for")
    if before.master is None:
        raise Conflict("the partition has no master: the target may be the best that there is")
    leave(draft, change.table, change.partition, target, preferred=before.preferred)


def slow_down(draft: Draft, change: SlowDown) -> None:
    before = draft.planned(change.table, change.partition, change.epoch)
    target = _migration(before).target
    check_no_handover(change.table, change.partition, before)
    if target not in before.slaves or not draft.is_up(before.master):
        raise Conflict("there is no master that is up, or no slave that has to catch up")
    draft.change(change.table, change.partition, state=PartitionState.SLOWDOWN, target=target)


def end_migration(draft: Draft, change: EndMigration) -> None:
    before = draft.planned(change.table, change.partition, change.epoch)
    moved = _migration(before)
    if moved.target not in before.replicas:
        raise Conflict(f"node {moved.target!r} has no replica yet")
    if moved.source == before.master:
        raise Conflict(f"node {moved.source!r} is master: its writes have to be handed over")
    if before.master is None:
        raise Conflict("the partition has no master: the source may be the best that there is")
    if before.state is PartitionState.STUCK:
        raise Conflict("the partition is being handed over: the migration ends after that")
    following: dict[str, object] = {
        "state": PartitionState.ACTIVE,
        "target": None,
        "migration": next(iter(before.migrations_next), None),
        "migrations_next": before.migrations_next[1:],
    }
    leave(draft, change.table, change.partition, moved.source, **following)


def cancel_migration(draft: Draft, change: CancelMigration) -> None:
    name, number = change.table, change.partition
    before = draft.partition(name, number)
    if before.migration is None:
        raise NotFound(f"partition {number} of table {name!r} does not move: look at the status")
    cancelled = [each for each in before.migrations if each.target != before.master]
    if not cancelled:
        raise Conflict(f"node {before.master!r} is master already: move it back once it has moved")
    if before.master is None and before.migration.target in before.slaves:
        raise Conflict("the partition has no master: the target may be the best that there is")
    _cancel(draft, name, number, cancelled)


def cancel_all_to(draft: Draft, node: NodeId) -> None:
    """A node that is to be emptied gets nothing; what it has by now is moved like all else."""
    for name, number, before in [*draft.all_partitions()]:
        cancelled = [each for each in before.migrations if each.target == node]
        is_needed = node in (before.replicas if before.master is None else (before.master,))
        if cancelled and not is_needed:
            _cancel(draft, name, number, cancelled)


def _cancel(draft: Draft, name: str, number: int, cancelled: list[Migration]) -> None:
    before = draft.partition(name, number)
    moved = _migration(before)
    left = [each for each in before.migrations if each not in cancelled]
    homes: dict[NodeId | None, NodeId] = {each.target: each.source for each in cancelled}
    fields: dict[str, object] = {
        "migration": left[0] if left else None,
        "migrations_next": tuple(left[1:]),
        "preferred": homes.get(before.preferred, before.preferred),
    }
    if moved not in cancelled or moved.target not in before.slaves:
        draft.change(name, number, **fields)
        return
    if before.target == moved.target:
        fields |= {"state": PartitionState.ACTIVE, "target": None}
    leave(draft, name, number, moved.target, **fields)


def _migration(partition: Partition) -> Migration:
    if partition.migration is None:
        raise Conflict("this partition does not move")
    return partition.migration
