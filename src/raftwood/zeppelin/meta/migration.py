"""Hand-overs, migrations and splits of partitions: the next step of each, without losing a write.

By a hand-over masters go back to the nodes that are preferred for them, and away from nodes that
leave. The master is frozen while a slave that is close catches up: what it acks after that is
nothing, and how far it came it tells at the epoch of the freeze. Once the slave is exactly there,
it is master.
"""

from collections import Counter
from collections.abc import Mapping

from raftwood.zeppelin.meta.changes import (
    AddTarget,
    BeginHandover,
    BeginSplit,
    CancelHandover,
    CancelSplit,
    EndHandover,
    EndMigration,
    EndSplit,
    RemoveTarget,
    SlowDown,
)
from raftwood.zeppelin.meta.heartbeats import CatchUp, PlanningView, ReplicaOffset, TablePartition
from raftwood.zeppelin.meta.partition_rules import unsplit
from raftwood.zeppelin.model import Gap, Migration, NodeId, Partition, PartitionState


def handover_step(view: PlanningView, place: TablePartition) -> EndHandover | CancelHandover | None:
    """For a partition that is stuck, and whose master is up."""
    before = place.partition
    name, number = place.table.name, place.number
    if before.master is not None and before.target is not None and view.is_up(before.target):
        if _has_all(view, place, before.target, master=before.master):
            return EndHandover(name, number, before.epoch)
        if view.now_ms - view.seen(place).state_ms < view.settings.handover_stuck_ms:
            return None
    view.reign.pause_longer(place.key, view.settings.handover_pause_ms, view.now_ms)
    return CancelHandover(name, number, before.epoch)


def _has_all(view: PlanningView, place: TablePartition, target: NodeId, *, master: NodeId) -> bool:
    frozen, reached = view.offset(master, place), view.offset(target, place)
    # Who is told of the freeze and says nothing since may not be there any more.
    epoch = min(view.heard(node).applied_epoch for node in (master, target))
    return (
        epoch >= place.partition.epoch
        and frozen is not None
        and reached is not None
        and reached.is_candidate
        and reached.position == frozen.position
    )


def wanted_handover(view: PlanningView, place: TablePartition) -> BeginHandover | None:
    """For a partition that is not frozen, and whose master is up: to the preferred node where that
    is another, from a migration's source to its target, from a master that leaves to some slave.
    """
    before = place.partition
    close = [
        slave
        for slave in _heirs(before, is_leaving=view.is_leaving(before.master))
        if is_close(view, place, slave)
    ]
    if not close or view.reign.is_paused(place.key, view.now_ms):
        return None
    target = min(close, key=lambda node: (node != before.preferred, view.masters[node], node))
    view.masters[target] += 1
    return BeginHandover(place.table.name, place.number, before.epoch, target)


def _heirs(partition: Partition, *, is_leaving: bool) -> list[NodeId]:
    """The slaves that are to be master instead of the one that is."""
    moved, wanted = partition.migration, [partition.preferred]
    is_moving = moved is not None and moved.source == partition.master
    if partition.state is PartitionState.SLOWDOWN:
        wanted = [partition.target] if is_moving or is_leaving else []
    elif is_leaving:
        return [*partition.slaves]
    elif moved is not None and is_moving:
        wanted.append(moved.target)
    return [slave for slave in partition.slaves if slave in wanted]


def is_close(view: PlanningView, place: TablePartition, slave: NodeId) -> bool:
    offset = view.offset(slave, place)
    return (
        offset is not None
        and view.is_up(slave)
        and not view.is_leaving(slave)
        and offset.is_candidate
        and slave not in place.partition.lagging
        and is_near(view, offset)
        and offset.contact_ms is not None
        and offset.contact_ms <= view.settings.lease_ms
    )


def is_near(view: PlanningView, offset: ReplicaOffset) -> bool:
    """Whether a freeze would not outlast what it may take. What is under way between two nodes that
    are far from each other counts by its time alone: it is never less while clients write.
    """
    settings = view.settings
    if offset.gap is None:
        return offset.lag_bytes <= settings.handover_close_bytes
    # The news of the freeze and of its end need the other half.
    return offset.gap.is_within(
        Gap(queued_bytes=settings.handover_close_bytes, drain_ms=settings.handover_stuck_ms // 2)
    )


class HandoverCandidates:
    """The hand-overs that one plan would begin, and how many are under way."""

    def __init__(self, view: PlanningView) -> None:
        self._view = view
        self.under_way = 0
        self._leaving: list[BeginHandover] = []
        self._moving: list[tuple[int, BeginHandover]] = []
        self._going_home: list[BeginHandover] = []

    def look_at(self, place: TablePartition) -> None:
        """At a partition whose master is up, and which is not frozen."""
        begun = wanted_handover(self._view, place)
        if begun is None:
            return
        moved, master = place.partition.migration, place.partition.master
        if self._view.is_leaving(master):
            self._leaving.append(begun)
        elif moved is not None and moved.source == master:
            self._moving.append((moved.plan, begun))
        else:
            self._going_home.append(begun)

    def begun(self) -> list[BeginHandover]:
        """The next of them, as the bounds allow. Who leaves does not wait, and migrations are few
        at a time already; those who go home do it one by one.
        """
        settings, reign, now_ms = self._view.settings, self._view.reign, self._view.now_ms
        room = max(settings.handovers_max - self.under_way, 0)
        moving = [begun for _, begun in sorted(self._moving, key=lambda each: each[0])]
        begun = [*self._leaving, *moving][:room]
        is_soon = now_ms - reign.handover_begun_ms < settings.handover_every_ms
        if self._going_home and len(begun) < room and not is_soon:
            reign.handover_begun_ms = now_ms
            begun.append(self._going_home[0])
        return begun


# The next step of each migration, from what its partition and its replicas say.
#
# Nothing of a migration is kept but its order: its target becomes a slave when its turn comes;
# while
# the source is master, it is handed over, as any master is (`handover`); and once the others do
# well
# without the source, it leaves. So whoever leads goes on with what it finds, and a failover amid a
# migration only changes who is master.
#
# Those under way are few, and are looked at in each plan; of those that wait, some are.

MigrationStep = EndMigration | RemoveTarget | SlowDown | CancelHandover


class MigrationCandidates:
    """The migrations under way that one plan has met, and which may begin besides them."""

    def __init__(self, view: PlanningView) -> None:
        self._view = view
        self._under_way = 0
        self._by_node: Counter[NodeId] = Counter()

    def look_at(self, place: TablePartition) -> None:
        """At one under way. It counts while something can come of it: where one of the two nodes
        that work is down, others have their turn.
        """
        target, master = _migration(place).target, place.partition.master
        if master is not None and self._view.is_up(master) and self._view.is_up(target):
            self._count(master, target)

    def _count(self, master: NodeId, target: NodeId) -> None:
        self._under_way += 1
        self._by_node[master] += 1
        self._by_node[target] += target != master

    def begun(self) -> list[AddTarget]:
        """The next that may begin: those that were ordered first, as the bounds allow."""
        view, settings = self._view, self._view.settings
        changes: list[AddTarget] = []
        if self._under_way >= settings.migrations_max:
            return changes
        for name, number in view.reign.queue.look():
            place = TablePartition(view.topology.tables[name], number)
            before, target = place.partition, _migration(place).target
            if before.master is None or before.state is not PartitionState.ACTIVE:
                continue
            nodes = (before.master, target)
            if max(self._by_node[node] for node in nodes) >= settings.migrations_per_node_max:
                continue
            if not all(map(self._can_work, nodes)):
                continue
            self._count(before.master, target)
            changes.append(AddTarget(name, number, before.epoch))
            if self._under_way >= settings.migrations_max:
                break
        return changes

    def _can_work(self, node: NodeId) -> bool:
        heard = self._view.heard(node)
        return self._view.is_up(node) and heard.is_heard and not heard.is_leaving


def migration_step(view: PlanningView, place: TablePartition) -> MigrationStep | None:
    """For one under way whose partition is not frozen, and has a master that is up."""
    before, moved = place.partition, _migration(place)
    name, number = place.table.name, place.number
    if before.master != moved.source and _can_end(view, place):
        return EndMigration(name, number, before.epoch)
    if before.state is PartitionState.ACTIVE and _is_gone(view, moved.target):
        return RemoveTarget(name, number, before.epoch)
    if before.state is PartitionState.SLOWDOWN:
        is_in_vain = _is_slow_in_vain(view, place)
        return CancelHandover(name, number, before.epoch) if is_in_vain else None
    return SlowDown(name, number, before.epoch) if _is_left_behind(view, place) else None


def _is_gone(view: PlanningView, target: NodeId) -> bool:
    """Whether the partition does better without it: a replica more that is down is one more that
    has to be heard where a master is chosen.
    """
    silent_ms = view.now_ms - view.heard(target).at_ms
    return not view.is_up(target) and silent_ms >= view.settings.target_gone_ms


def _is_slow_in_vain(view: PlanningView, place: TablePartition) -> bool:
    """Whether writers are held back for a target that does not come closer by that."""
    target, reign = _migration(place).target, view.reign
    if view.now_ms - view.seen(place).state_ms >= view.settings.slowdown_ms_max:
        reign.pause(place.key, view.settings.slowdown_ms_max, view.now_ms)
        return True
    if not view.is_up(target):
        return True
    if not view.heard(target).is_heard or is_close(view, place, target):
        return False
    offset = view.offset(target, place)
    return offset is None or not offset.is_candidate or view.is_leaving(place.partition.master)


def _is_left_behind(view: PlanningView, place: TablePartition) -> bool:
    """Whether a target that is streamed to does not come closer, by what it has told in this
    leader's time.
    """
    target, reign, settings = _migration(place).target, view.reign, view.settings
    offset, after_ms = view.offset(target, place), view.heard(target).after_ms
    is_paused = reign.is_paused(place.key, view.now_ms)
    if offset is None or after_ms is None or is_paused or not _is_far(view, target, offset):
        reign.catch_ups.pop(place.key, None)
        return False
    known, master_epoch = reign.catch_ups.get(place.key), view.seen(place).master_epoch
    if known is None or (known.target, known.master_epoch) != (target, master_epoch):
        known = reign.catch_ups[place.key] = CatchUp(target, master_epoch, view.now_ms)
    known.tell(offset.lag_bytes, after_ms=after_ms)
    return known.is_failing(
        now_ms=view.now_ms,
        span_ms=settings.catch_up_look_ms,
        catch_up_ms_max=settings.catch_up_ms_max,
    )


def _is_far(view: PlanningView, target: NodeId, offset: ReplicaOffset) -> bool:
    """Behind a master that streams to it; a copy takes as long as it takes."""
    return (
        view.is_up(target)
        and offset.is_streaming
        and offset.is_candidate
        and offset.contact_ms is not None
        and offset.contact_ms <= view.settings.lease_ms
        and not is_near(view, offset)
    )


def _can_end(view: PlanningView, place: TablePartition) -> bool:
    """Whether the partition is without the source as well off as it was before the target came:
    the target does what the source did, and nobody else needs the source to go on from.
    """
    before, moved = place.partition, _migration(place)
    assert before.master is not None
    others = [each for each in before.slaves if each not in (moved.source, moved.target)]
    return _is_well(view, place, moved.target) and all(
        # Within `down_ms` a slave is in contact with the master that it has now, or is marked.
        not view.is_up(each)
        or each in before.lagging
        or (each not in before.unproven and view.missed_ms(each, place, before.master) is not None)
        for each in others
    )


def _is_well(view: PlanningView, place: TablePartition, target: NodeId) -> bool:
    """What was told before the partition became what it is does not count: it may be of a replica
    that the target had once, or of another master.
    """
    before = place.partition
    offset = view.offset(target, place)
    if view.heard(target).applied_epoch < before.epoch or offset is None:
        return False
    if target == before.master:
        return offset.is_candidate
    return target not in before.unproven and is_close(view, place, target)


def _migration(place: TablePartition) -> Migration:
    moved = place.partition.migration
    assert moved is not None
    return moved


# Partitions of a table that doubles are split, each in its turn, without losing a write.
#
# The master is frozen as for a hand-over, and tells how far it came. Once all slaves that are well
# are as far, there are two partitions: each node has both then, from what it has of the first.


def split_step(view: PlanningView, place: TablePartition) -> EndSplit | CancelSplit | None:
    """For a partition that is stuck to be split, and whose master is up."""
    before = place.partition
    name, number = place.table.name, place.number
    assert before.master is not None
    frozen = view.offset(before.master, place)
    needed = _needed(view, place)
    if (
        frozen is not None
        and needed is not None
        and all(
            view.heard(node).applied_epoch >= before.epoch
            and (offset := view.offset(node, place)) is not None
            and offset.is_candidate
            and offset.position == frozen.position
            for node in (before.master, *needed)
        )
    ):
        return EndSplit(name, number, before.epoch, frozen.epoch, frozen.sequence)
    if view.now_ms - view.seen(place).state_ms < view.settings.handover_stuck_ms:
        return None
    view.reign.pause_longer(place.key, view.settings.handover_pause_ms, view.now_ms)
    return CancelSplit(name, number, before.epoch)


def _needed(view: PlanningView, place: TablePartition) -> list[NodeId] | None:
    """The slaves that have to be as far as the master is; others take a whole copy afterwards.

    None where they are too few for a write to be acked: what is acked later of the one partition,
    as a record from before the split, they must have of the other one, too.
    """
    before, least = place.partition, place.table.config.min_replicas
    well = [each for each in before.slaves if view.is_up(each) and each not in before.lagging]
    return None if 1 + len(well) < least else well


class SplitCandidates:
    """The splits that one plan would begin."""

    def __init__(self, view: PlanningView) -> None:
        self._view = view
        self._unsplit: Mapping[str, frozenset[int]] = {
            name: unsplit(table.partitions, table.config.partitions)
            for name, table in view.topology.tables.items()
        }
        self._found: list[tuple[BeginSplit, tuple[NodeId, ...]]] = []

    def look_at(self, place: TablePartition) -> bool:
        """At a partition whose master is up, and which is active; whether it is to be split."""
        view, before = self._view, place.partition
        needed = _needed(view, place)
        is_wanted = (
            place.number in self._unsplit[place.table.name]
            and before.migration is None
            and not view.is_leaving(before.master)
            and not view.reign.is_paused(place.key, view.now_ms)
            and needed is not None
            and all(is_close(view, place, slave) for slave in needed)
        )
        if is_wanted:
            begun = BeginSplit(place.table.name, place.number, before.epoch)
            self._found.append((begun, before.replicas))
        return is_wanted

    def begun(self, *, room: int) -> list[BeginSplit]:
        """As many as may be frozen at a time besides those that are; a node splits one partition at
        a time, so that none of them waits for another's.
        """
        busy = {
            node
            for each in self._view.reign.stuck.values()
            if each.is_splitting
            for node in each.replicas
        }
        begun: list[BeginSplit] = []
        for change, replicas in self._found:
            if len(begun) < room and busy.isdisjoint(replicas):
                begun.append(change)
                busy.update(replicas)
        return begun
