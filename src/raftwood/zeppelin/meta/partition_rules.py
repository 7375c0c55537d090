"""How changes affect a partition: its master, its slaves, hand-overs, migrations, splits.

All are made to a `TopologyDraft`, which is a topology while one batch of changes is made to it.
They are replicated, and each member of the raft group makes them by itself: nothing here may depend
on a clock, on chance, or on reports that only the leader has.

The leader plans from nodes' reports, and its plans may be old when they arrive. So each rule below
checks again what it can check without the leader's knowledge
(`test_a_plan_is_refused_once_its_partition_has_changed_and_only_then`;
`test_random_changes_keep_what_must_hold`).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from raftwood.base.errors import AlreadyExists, Conflict, InvalidInput, NotFound
from raftwood.zeppelin.meta.changes import (
    AddSlave,
    AddTarget,
    BeginHandover,
    BeginSplit,
    CancelHandover,
    CancelMigration,
    CancelSplit,
    ChangeMaster,
    EndHandover,
    EndMigration,
    EndSplit,
    ForceMaster,
    MarkSlaves,
    Migrate,
    RemoveSlave,
    RemoveTarget,
    SetMaster,
    SlowDown,
)
from raftwood.zeppelin.model import (
    EPOCH_NO_TABLE,
    EPOCH_NONE,
    REPLICAS_MAX,
    Migration,
    NodeId,
    NodeInfo,
    Parent,
    Partition,
    PartitionState,
    Table,
    Topology,
    User,
)
from raftwood.zeppelin.slots import PARTITIONS_MAX


class TopologyDraft:
    """A topology while one batch of changes is made to it; look-ups raise `NotFound`."""

    def __init__(self, topology: Topology) -> None:
        self._before = topology
        self.epoch = max(topology.epoch + 1, 1)
        """The epoch after the batch; above 0, which means no epoch."""
        self.tables: dict[str, Table] = dict(topology.tables)
        self.nodes: dict[NodeId, NodeInfo] = dict(topology.nodes)
        self.users: dict[str, User] = dict(topology.users)
        self._opened: dict[str, list[Partition]] = {}

    def check_epoch(self, epoch: int) -> None:
        """Raises `Conflict` if the topology has changed since the plan."""
        if self._before.epoch != epoch:
            raise Conflict(
                f"the topology has changed: it was planned on at epoch {epoch} and is at "
                f"{self._before.epoch}; plan anew"
            )

    def table(self, name: str) -> Table:
        if name not in self.tables:
            raise NotFound(f"there is no table {name!r}: check its name")
        return self.tables[name]

    def node(self, node: NodeId) -> NodeInfo:
        if node not in self.nodes:
            raise NotFound(f"there is no node {node!r}: check its name")
        return self.nodes[node]

    def is_up(self, node: NodeId | None) -> bool:
        return node is not None and node in self.nodes and self.nodes[node].is_up

    def partition(self, table: str, number: int) -> Partition:
        self.table(table)
        count = len(self.partitions_of(table))
        if not 0 <= number < count:
            raise NotFound(f"table {table!r} has no partition {number}: give 0 to {count - 1}")
        return self.partitions_of(table)[number]

    def planned(self, table: str, number: int, epoch: int) -> Partition:
        """Returns a partition; raises `Conflict` if it has changed since the plan.

        By the partition's own epoch. By the topology's epoch, which Zeppelin's text has alone
        (section 2.1), one busy table would make all plans for others old before they arrive, and a
        failover could wait for ever (planted bug "a global epoch").
        """
        found = self.partition(table, number)
        if found.epoch != epoch:
            raise Conflict(
                f"partition {number} of table {table!r} has changed: it was planned on at epoch "
                f"{epoch} and is at {found.epoch}; plan anew"
            )
        return found

    def all_partitions(self) -> Iterator[tuple[str, int, Partition]]:
        for name in self.tables:
            for number, partition in enumerate(self.partitions_of(name)):
                yield name, number, partition

    def change(self, table: str, number: int, **fields: Any) -> None:
        """Changes fields of a partition, and its epoch if that makes a difference."""
        before = self.partition(table, number)
        after = msgspec.structs.replace(before, **fields)
        if after == before:
            return
        self._opened_partitions(table)[number] = msgspec.structs.replace(after, epoch=self.epoch)

    def add_partition(self, table: str, partition: Partition) -> None:
        """Adds a partition behind all others."""
        self._opened_partitions(table).append(partition)

    def _opened_partitions(self, table: str) -> list[Partition]:
        if table not in self._opened:
            self._opened[table] = list(self.tables[table].partitions)
        return self._opened[table]

    def add_table(self, table: Table) -> None:
        self.tables[table.name] = table

    def drop_table(self, name: str) -> None:
        del self.tables[name]
        self._opened.pop(name, None)

    def partitions_of(self, table: str) -> Sequence[Partition]:
        """All partitions of an existing table, by number."""
        return self._opened.get(table, self.tables[table].partitions)

    def finished(self) -> Topology:
        """Returns the new topology; the old one itself if nothing has changed."""
        for name, partitions in self._opened.items():
            self.tables[name] = msgspec.structs.replace(
                self.tables[name], partitions=tuple(partitions)
            )
        before = self._before
        if (self.tables, self.nodes, self.users) == (before.tables, before.nodes, before.users):
            return before
        is_first = before.epoch == EPOCH_NONE and not self.tables
        return Topology(
            epoch=EPOCH_NO_TABLE if is_first else self.epoch,
            tables=self.tables,
            nodes=self.nodes,
            users=self.users,
        )


# How changes affect the replicas of one partition: masters, slaves, hand-overs.
#
# A hand-over (Zeppelin's text, section 2.3, steps 4 to 6): the partition is `stuck` and names its
# target, so the master takes no more writes. Once the master has reported that with its position,
# and the target is there too, one change makes the target the master. Two changes, one that ends
# the old master and one that makes the new one, would leave the partition without a master if the
# leader died in between.


def change_master(draft: TopologyDraft, change: ChangeMaster) -> None:
    before = draft.planned(change.table, change.partition, change.epoch)
    old, new = before.master, change.master
    # A master that is up may be acking writes right now, under a lease. Two nodes would serve one
    # partition until that ends (planted bugs "a lease that is too long" and "no lease").
    if new is not None and draft.is_up(old):
        raise Conflict(f"{old!r} is up and master: its writes have to be handed over")
    lagging = (*before.lagging, *change.lagging)
    if new is not None:
        _check_can_lead(draft, before, new)
        # The process that reported the deciding position is gone: the new one may have lost what
        # was not synced.
        if change.run is not None and draft.node(new).run != change.run:
            raise Conflict(f"node {new!r} has started anew since it told how far it is")
        # The old master's last records may be on no other replica: it must undo them before it can
        # be master again (`test_a_failover_marks_the_old_master_and_never_takes_one_that_is_up`).
        lagging = (*lagging, old) if old is not None else lagging
    _set_master(draft, change.table, change.partition, new, lagging)


def force_master(draft: TopologyDraft, change: ForceMaster) -> None:
    before = draft.partition(change.table, change.partition)
    if before.master is not None:
        raise Conflict(f"{before.master!r} is master: only a partition without one can be forced")
    _check_can_lead(draft, before, change.node)
    _set_master(draft, change.table, change.partition, change.node, before.slaves)


def demote_restarted(draft: TopologyDraft, node: NodeId) -> None:
    """Demotes a node that has started anew in all its partitions.

    It may have lost records that were not synced, and slaves may have them. If it went on as master
    at the same epoch, it would write other records under the same numbers, and no replica could
    tell the two apart. So its partitions go to the replica that is ahead, itself perhaps, at
    another epoch (`test_a_node_that_starts_anew_is_master_of_nothing_until_it_is_chosen`).
    """
    for name, number, before in [*draft.all_partitions()]:
        if before.master == node:
            _set_master(draft, name, number, None, before.lagging)
        elif before.target == node:
            draft.change(name, number, state=PartitionState.ACTIVE, target=None)


def _set_master(
    draft: TopologyDraft,
    table: str,
    number: int,
    master: NodeId | None,
    lagging: tuple[NodeId, ...],
) -> None:
    """Sets a master, ends a running hand-over or split, and keeps the marks of the slaves."""
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


def _check_can_lead(draft: TopologyDraft, partition: Partition, node: NodeId) -> None:
    if node not in partition.slaves:
        raise NotFound(f"node {node!r} has no replica of this partition that could become master")
    if not draft.is_up(node):
        raise Conflict(f"node {node!r} is down: only one that is up can be master")


def mark_slaves(draft: TopologyDraft, change: MarkSlaves) -> None:
    before = draft.planned(change.table, change.partition, change.epoch)
    lagging = tuple(each for each in before.slaves if each in change.lagging)
    # Only a replica that is still unproven can stay so: the plan may be older than its proof.
    unproven = tuple(each for each in before.unproven if each in change.unproven)
    draft.change(change.table, change.partition, lagging=lagging, unproven=unproven)


def begin_handover(draft: TopologyDraft, change: BeginHandover) -> None:
    before = draft.planned(change.table, change.partition, change.epoch)
    if before.target != change.target or before.state is PartitionState.STUCK:
        check_no_handover(change.table, change.partition, before)
    _check_can_lead(draft, before, change.target)
    if not draft.is_up(before.master):
        raise Conflict("there is no master that is up: nothing can be handed over")
    draft.change(change.table, change.partition, state=PartitionState.STUCK, target=change.target)


def end_handover(draft: TopologyDraft, change: EndHandover) -> None:
    before = draft.planned(change.table, change.partition, change.epoch)
    target = _target(before)
    # Without the freeze the master acks writes while the change is on its way, and its slave, equal
    # a moment ago, becomes master without them (planted bug "frozen before the freeze").
    if before.state is not PartitionState.STUCK:
        raise Conflict("the master is not frozen: it may have more than its slave")
    _check_can_lead(draft, before, target)
    _set_master(draft, change.table, change.partition, target, before.lagging)


def cancel_handover(draft: TopologyDraft, change: CancelHandover) -> None:
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


def set_master(draft: TopologyDraft, change: SetMaster) -> None:
    """Stores the preferred master; the leader hands over as soon as that slave is close."""
    before = draft.partition(change.table, change.partition)
    if change.node not in before.replicas:
        raise NotFound(f"node {change.node!r} has no replica of this partition: add it as a slave")
    if any(each.source == change.node for each in before.migrations):
        check_no_migration(change.table, change.partition, before)
    draft.change(change.table, change.partition, preferred=change.node)


def add_slave(draft: TopologyDraft, change: AddSlave) -> None:
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
        # Marked from the start: it has nothing yet, and must not be chosen at a failover
        # (`test_a_slave_that_was_just_added_is_no_candidate`).
        slaves=(*before.slaves, change.node),
        lagging=(*before.lagging, change.node),
    )


def remove_slave(draft: TopologyDraft, change: RemoveSlave) -> None:
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


def leave(draft: TopologyDraft, table: str, number: int, slave: NodeId, **fields: Any) -> None:
    """Removes a slave and changes other fields of the partition with that."""
    before = draft.partition(table, number)
    slaves = tuple(each for each in before.slaves if each != slave)
    is_preferred = before.preferred == slave
    draft.change(
        table,
        number,
        slaves=slaves,
        lagging=tuple(each for each in before.lagging if each != slave),
        # The master and the slave that goes may be the only two that have some acked write. Until
        # the others have shown that they have it, a quorum of them proves nothing.
        unproven=slaves if draft.table(table).config.min_replicas > 1 else (),
        **{"preferred": before.master if is_preferred else before.preferred} | fields,
    )


# How changes affect partitions that split because their table doubles.
#
# Zeppelin's text calls it a drawback that partitions cannot be added (section 1.1): a key's place
# is its hash modulo their number. With twice the number, each key stays or goes to one other place,
# so that a partition can be split where it is (docs/decisions/0025).
#
# The order sets the table's new number of partitions: each partition has two places then, and is
# split in its turn. It is `stuck` as for a hand-over, and continues as two, with the same replicas,
# from the last record that its master wrote before. Without the freeze, only replicas that had it
# already would have a record behind that point (planted bug "a split without a freeze").


def unsplit(partitions: Sequence[Partition], asked: int) -> frozenset[int]:
    """Returns the partitions still to be split of a table that doubles to `asked` partitions."""
    half = asked // 2
    if len(partitions) >= asked:
        return frozenset()
    split = {each.parent.number for each in partitions[half:] if each.parent is not None}
    return frozenset(range(half)) - split


def check_not_doubling(draft: TopologyDraft, table: str) -> None:
    """Raises `Conflict` while a table doubles: its partitions do not move meanwhile."""
    have, asked = len(draft.partitions_of(table)), draft.table(table).config.partitions
    if have < asked:
        raise Conflict(
            f"table {table!r} doubles, and has {have} of its {asked} partitions: wait for that"
        )


def double_partitions(draft: TopologyDraft, name: str) -> None:
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


def begin_split(draft: TopologyDraft, change: BeginSplit) -> None:
    name, number = change.table, change.partition
    before = draft.planned(name, number, change.epoch)
    check_no_handover(name, number, before)
    check_no_migration(name, number, before)
    if not draft.is_up(before.master):
        raise Conflict("there is no master that is up: nothing can be split")
    if number not in unsplit(draft.partitions_of(name), draft.table(name).config.partitions):
        raise Conflict(f"partition {number} of table {name!r} is not to be split")
    draft.change(name, number, state=PartitionState.STUCK, is_splitting=True)


def end_split(draft: TopologyDraft, change: EndSplit) -> None:
    name, number = change.table, change.partition
    before = draft.planned(name, number, change.epoch)
    _check_splitting(before)
    parent = Parent(number=number, epoch=change.record_epoch, sequence=change.sequence)
    _go_on(draft, name, number)
    draft.add_partition(name, msgspec.structs.replace(draft.partition(name, number), parent=parent))


def cancel_split(draft: TopologyDraft, change: CancelSplit) -> None:
    before = draft.planned(change.table, change.partition, change.epoch)
    _check_splitting(before)
    _go_on(draft, change.table, change.partition)


def _go_on(draft: TopologyDraft, table: str, number: int) -> None:
    draft.change(table, number, state=PartitionState.ACTIVE, is_splitting=False)


def _check_splitting(partition: Partition) -> None:
    if not partition.is_splitting:
        raise Conflict("this partition is not being split")


# How changes affect a migration: it is ordered, its target becomes a slave, its source leaves.
#
# If the source is master, it is handed over between the last two steps, like any master. The order
# is a part of the partition, and so outlives the meta server's leader (docs/decisions/0024);
# `migration` plans the steps.


def check_none_in(draft: TopologyDraft, table: str) -> None:
    """Raises `Conflict` if a partition of the table is moving."""
    for number in range(len(draft.table(table).partitions)):
        check_no_migration(table, number, draft.partition(table, number))


def migrate(draft: TopologyDraft, change: Migrate) -> None:
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
        # The preference follows the replica, or the master would be handed back to a node that no
        # longer has the partition.
        preferred=target if before.preferred == source else before.preferred,
    )


def add_target(draft: TopologyDraft, change: AddTarget) -> None:
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


def remove_target(draft: TopologyDraft, change: RemoveTarget) -> None:
    before = draft.planned(change.table, change.partition, change.epoch)
    target = _migration(before).target
    check_no_handover(change.table, change.partition, before)
    # Only a target that is down is removed: one that is up may be the only close slave, and may be
    # acking writes.
    if target not in before.slaves or draft.is_up(target):
        raise Conflict(f"node {target!r} is up, or no slave: there is nothing to wait for")
    if before.master is None:
        raise Conflict("the partition has no master: the target may be the best that there is")
    leave(draft, change.table, change.partition, target, preferred=before.preferred)


def slow_down(draft: TopologyDraft, change: SlowDown) -> None:
    before = draft.planned(change.table, change.partition, change.epoch)
    target = _migration(before).target
    check_no_handover(change.table, change.partition, before)
    if target not in before.slaves or not draft.is_up(before.master):
        raise Conflict("there is no master that is up, or no slave that has to catch up")
    draft.change(change.table, change.partition, state=PartitionState.SLOWDOWN, target=target)


def end_migration(draft: TopologyDraft, change: EndMigration) -> None:
    before = draft.planned(change.table, change.partition, change.epoch)
    moved = _migration(before)
    if moved.target not in before.replicas:
        raise Conflict(f"node {moved.target!r} has no replica yet")
    if moved.source == before.master:
        raise Conflict(f"node {moved.source!r} is master: its writes have to be handed over")
    # No replica leaves a partition without a master: it may have the most records.
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


def cancel_migration(draft: TopologyDraft, change: CancelMigration) -> None:
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


def cancel_all_to(draft: TopologyDraft, node: NodeId) -> None:
    """Cancels all moves to a drained node; replicas that have arrived move like the rest."""
    for name, number, before in [*draft.all_partitions()]:
        cancelled = [each for each in before.migrations if each.target == node]
        is_needed = node in (before.replicas if before.master is None else (before.master,))
        if cancelled and not is_needed:
            _cancel(draft, name, number, cancelled)


def _cancel(draft: TopologyDraft, name: str, number: int, cancelled: list[Migration]) -> None:
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
