"""Hand-overs, migrations and splits of partitions: the next step of each, without losing a write.

The steps are those of Zeppelin's text, section 2.3: the target becomes a slave, it comes close, the
master is frozen, the two are equal, the target takes over. The text compares offsets that nodes
reported at some time; these rules ask for offsets from after the freeze (docs/decisions/0018,
0024). Planted bugs are in `tests/kits/zeppelin/meta/world/mutants.py` and
`tests/kits/zeppelin/simulation/mutants.py`.

Hand-overs move masters back to their preferred nodes, and away from nodes that leave; the text
complains that failovers alone leave a few nodes with most masters. The master is frozen while a
close slave catches up: it acks nothing after that, and reports its position at the epoch of the
freeze. Once the slave is exactly there, it becomes master.
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
    """The next step for a partition that is stuck, and whose master is up.

    A freeze ends even if the target never catches up, because clients wait (planted bugs "never
    unstuck" and "stuck is never left"). Each freeze in vain is followed by a longer pause, or a
    target that cannot keep up would stop the writes of its partition every few seconds
    (`test_each_hand_over_in_vain_is_followed_by_a_longer_pause`).
    """
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
    # Both must have reported at the epoch of the freeze or later. The text compares the offsets of
    # the last pings: the master may have written since, and it still does until it has fetched the
    # freeze. Those writes are acked and lost (planted bugs "frozen before the freeze", "frozen with
    # offsets from before" and "hand-over without word of the freeze"). A node that knows of the
    # freeze but has not reported since may be gone.
    frozen, reached = view.offset(master, place), view.offset(target, place)
    epoch = min(view.heard(node).applied_epoch for node in (master, target))
    return (
        epoch >= place.partition.epoch
        and frozen is not None
        and reached is not None
        and reached.is_candidate
        and reached.position == frozen.position
    )


def wanted_handover(view: PlanningView, place: TablePartition) -> BeginHandover | None:
    """The hand-over to begin for a partition that is not frozen, and whose master is up: to the
    preferred node, from a migration's source to its target, or from a leaving master to some slave.
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
    """Returns the slaves that should replace the present master."""
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
    """Whether a freeze that begins now would end within its time limit.

    The text freezes once the offsets are within `stuck_offset_dist`. Bytes alone mislead both ways:
    over a long link a target that keeps up always has more than that under way and would never be
    frozen for, and over a slow link few bytes outlast the freeze
    (`test_a_far_target_that_keeps_up_is_close_though_much_is_under_way`).
    """
    settings = view.settings
    if offset.gap is None:
        return offset.lag_bytes <= settings.handover_close_bytes
    # The other half is for the nodes to learn of the freeze and of its end.
    return offset.gap.is_within(
        Gap(queued_bytes=settings.handover_close_bytes, drain_ms=settings.handover_stuck_ms // 2)
    )


class HandoverCandidates:
    """The hand-overs that one plan could begin, and how many are running."""

    def __init__(self, view: PlanningView) -> None:
        self._view = view
        self.under_way = 0
        self._leaving: list[BeginHandover] = []
        self._moving: list[tuple[int, BeginHandover]] = []
        self._going_home: list[BeginHandover] = []

    def look_at(self, place: TablePartition) -> None:
        """Considers a partition whose master is up, and which is not frozen."""
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
        """Returns the next hand-overs, as the bounds allow.

        A node that leaves is about to stop, so its masters go first. Migrations are few at a time
        already. Masters that go back to their preferred node do so one by one: after a restart a
        node would otherwise freeze hundreds of partitions at once
        (`test_few_hand_overs_go_on_at_a_time_and_one_begins_after_the_other`).
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
# Only the order of a migration is stored. Its target becomes a slave when its turn comes; a source
# that is master is handed over like any master (`handover_step`); and once the other replicas do
# without the source, it leaves. The text persists the order, and keeps what the next steps wait for
# in its leader's memory: when that leader dies, a migration can stop half-way. Here a new leader
# continues from the state of the partition (planted bugs "forgotten by the next leader" and
# "migrations are forgotten"), and a failover amid a migration only changes the master
# (`test_a_failover_only_changes_who_is_master`).
#
# The migrations under way are few, and each plan looks at all of them; of those that wait, at some.

MigrationStep = EndMigration | RemoveTarget | SlowDown | CancelHandover


class MigrationCandidates:
    """Counts the running migrations that one plan sees, and selects those that may begin beside
    them.

    Bounded in all and per node: each begins with a whole copy, and a node that receives ten at once
    has no disk left for its clients (planted bugs "any number at once" and "nodes without a
    bound").
    """

    def __init__(self, view: PlanningView) -> None:
        self._view = view
        self._under_way = 0
        self._by_node: Counter[NodeId] = Counter()

    def look_at(self, place: TablePartition) -> None:
        """Considers a running migration. It counts while it can progress: if one of its two working
        nodes is down, others get its turn (`test_a_node_that_stays_away_holds_up_no_others`).
        """
        target, master = _migration(place).target, place.partition.master
        if master is not None and self._view.is_up(master) and self._view.is_up(target):
            self._count(master, target)

    def _count(self, master: NodeId, target: NodeId) -> None:
        self._under_way += 1
        self._by_node[master] += 1
        self._by_node[target] += target != master

    def begun(self) -> list[AddTarget]:
        """Returns the migrations that may begin: first ordered first, as the bounds allow."""
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
    """Returns the next step of a migration; the partition is not frozen, and its master is up."""
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
    """Whether the partition does better without a target that is down.

    A choice by quorum also waits for this replica's report: a migration must not make its partition
    less available (`test_a_target_that_stays_away_is_no_replica_meanwhile`).
    """
    silent_ms = view.now_ms - view.heard(target).at_ms
    return not view.is_up(target) and silent_ms >= view.settings.target_gone_ms


def _is_slow_in_vain(view: PlanningView, place: TablePartition) -> bool:
    """Whether writers are slowed down in vain: the target does not catch up.

    Clients must not pay for a target that is down or receives a copy, nor without an end (planted
    bug "slowed down for ever"; `test_writers_are_let_go_after_a_while_and_left_alone_as_long`).
    """
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
    """Whether a streaming target fails to catch up, by its reports in this leader's term.

    The text slows the partition down as soon as the target is a slave, and calls that doubtful
    itself: a whole copy takes hours, and clients would be slow for all of them. Here they are
    slowed down once the stream alone has been shown not to be enough
    (`test_writers_are_held_back_for_a_target_that_comes_no_closer`).
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
    """Whether a target is far behind a master that streams to it. A copy does not count, because
    slower writers do not make it shorter.
    """
    return (
        view.is_up(target)
        and offset.is_streaming
        and offset.is_candidate
        and offset.contact_ms is not None
        and offset.contact_ms <= view.settings.lease_ms
        and not is_near(view, offset)
    )


def _can_end(view: PlanningView, place: TablePartition) -> bool:
    """Whether the partition is as well off without the source as it was before the target came.

    The target does what the source did, and no other slave needs records that only the source has.
    If the source left as soon as the target is a slave, a failover a moment later would have one
    replica less to choose from, and that may be the only one with the last writes (planted bug "the
    source is gone too early"; `test_the_source_stays_until_the_others_follow_the_new_master`).
    """
    before, moved = place.partition, _migration(place)
    assert before.master is not None
    others = [each for each in before.slaves if each not in (moved.source, moved.target)]
    return _is_well(view, place, moved.target) and all(
        # Within `down_ms` a slave gets in contact with its present master, or is marked.
        not view.is_up(each)
        or each in before.lagging
        or (each not in before.unproven and view.missed_ms(each, place, before.master) is not None)
        for each in others
    )


def _is_well(view: PlanningView, place: TablePartition, target: NodeId) -> bool:
    """Whether the target is a good replica, by its reports since the partition's present epoch.

    Older messages may be about a replica that the node had once, or about another master (planted
    bug "the source is gone by what the target told of another time").
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


# Splits the partitions of a table that doubles, one after the other, without losing a write.
#
# The master is frozen as for a hand-over, and reports its position. Once all healthy slaves are
# there too, the partition becomes two: each node makes the second from its data of the first. A
# slave that lags must take a whole copy of the new one, because the records before the split are in
# the binlog of the first partition alone.


def split_step(view: PlanningView, place: TablePartition) -> EndSplit | CancelSplit | None:
    """Returns the next step of a partition that is stuck for a split, and whose master is up."""
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
    """Returns the slaves that must be as far as the master; others take a whole copy afterwards.

    None if they are too few to ack a write. A write from before the split that is acked after it
    belongs to one of the two partitions: so many replicas must have it there
    (`test_no_partition_is_split_while_too_few_replicas_are_well_to_ack_its_writes`).
    """
    before, least = place.partition, place.table.config.min_replicas
    well = [each for each in before.slaves if view.is_up(each) and each not in before.lagging]
    return None if 1 + len(well) < least else well


class SplitCandidates:
    """The splits that one plan could begin."""

    def __init__(self, view: PlanningView) -> None:
        self._view = view
        self._unsplit: Mapping[str, frozenset[int]] = {
            name: unsplit(table.partitions, table.config.partitions)
            for name, table in view.topology.tables.items()
        }
        self._found: list[tuple[BeginSplit, tuple[NodeId, ...]]] = []

    def look_at(self, place: TablePartition) -> bool:
        """Considers an active partition whose master is up; returns whether it should split."""
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
        """Returns the splits to begin, as the bound on frozen partitions allows.

        A node splits one partition at a time: each split writes to the one disk of its node, and a
        second frozen partition would wait for the first one's
        (`test_a_node_splits_one_partition_at_a_time`).
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
