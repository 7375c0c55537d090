"""Who becomes master where the master is gone, and which slaves have missed too much for it.

Whoever is chosen has the most among the replicas that may be chosen. Where each write is acked by
one replica alone, those are the slaves within the table's lag bound that were in contact with the
master; a slave that was not is marked in the topology, so that no later leader forgets it. Where
writes are acked by two replicas or more, the choice waits until so many have told how far they are
that each acked write is known to one of them: then the one with the most has them all.

A master that is up and cannot lead is first made master no more; once all know that, one is chosen.
"""

from collections.abc import Mapping, Sequence

from raftwood.zeppelin.meta.changes import ChangeMaster, MarkSlaves
from raftwood.zeppelin.meta.heartbeats import PlanningView, ReplicaOffset, TablePartition
from raftwood.zeppelin.model import NodeId


def is_unfit(view: PlanningView, place: TablePartition) -> bool:
    """Whether a master that is up and knows that it is one has no replica to lead with: it cannot
    be opened, or repairs, and only another master can mend it.
    """
    master = place.partition.master
    assert master is not None
    offset = view.offset(master, place)
    return (
        (offset is None or not offset.is_candidate)
        and view.heard(master).applied_epoch >= place.partition.epoch
        # What has just been given to it may be opening still.
        and view.now_ms - view.seen(place).epoch_ms >= view.settings.lease_ms
    )


def demotion(view: PlanningView, place: TablePartition) -> ChangeMaster:
    """For an unfit master. What it has not led, no slave has missed."""
    before = place.partition
    assert before.master is not None
    down_ms = view.settings.down_ms
    missed = {slave: view.missed_ms(slave, place, before.master) or 0 for slave in before.slaves}
    lagging = tuple(slave for slave in before.slaves if missed[slave] > down_ms)
    return ChangeMaster(place.table.name, place.number, before.epoch, None, lagging)


def failover(view: PlanningView, place: TablePartition) -> ChangeMaster | None:
    """For a partition without a master that is up; None where there is nothing to do yet."""
    before = place.partition
    up = [node for node in before.replicas if view.is_up(node)]
    if not all(_has_reported(view, place, node) for node in up):
        return None  # each will, or will be down
    reports = {node: offset for node in up if (offset := view.offset(node, place)) is not None}
    lagging = _lagging(view, place)
    if place.table.config.min_replicas > 1:
        candidates = _candidates_by_quorum(place, reports)
    else:
        candidates = _candidates_by_lag(place, reports, lagging)
    master = _chosen(view, candidates)
    if master is None and before.master is None:
        return None
    if master is not None:
        view.masters[master] += 1
        # Whoever is not here misses what the new master writes, and whoever has less lacks nobody
        # knows how much: they have to show that they have caught up.
        most = reports[master].position
        behind = [
            node for node in before.replicas if node not in reports or reports[node].position < most
        ]
        lagging = (*lagging, *behind)
    run = None if master is None else view.topology.nodes[master].run
    return ChangeMaster(place.table.name, place.number, before.epoch, master, lagging, run)


def _has_reported(view: PlanningView, place: TablePartition, node: NodeId) -> bool:
    """Whether what it told is how far it is when no master can send it anything any more."""
    heard, master = view.heard(node), place.partition.master
    if master is None:
        # Whoever knows that takes nothing, and writes nothing.
        return heard.is_heard and heard.applied_epoch >= place.partition.epoch
    # When it was heard says nothing: it may have been long on its way.
    end_of_writes_ms = view.heard(master).at_ms + view.settings.lease_ms
    return heard.after_ms is not None and heard.after_ms >= end_of_writes_ms


def _lagging(view: PlanningView, place: TablePartition) -> tuple[NodeId, ...]:
    """Those that are marked, and those that the master went on without in this leader's time."""
    before, master = place.partition, place.partition.master
    if master is None or not view.heard(master).is_heard:
        return before.lagging
    down_ms = view.settings.down_ms
    return tuple(
        slave
        for slave in before.slaves
        if slave in before.lagging
        or (missed_ms := view.missed_ms(slave, place, master)) is None
        or missed_ms > down_ms
    )


def _candidates_by_lag(
    place: TablePartition, reports: Mapping[NodeId, ReplicaOffset], lagging: Sequence[NodeId]
) -> dict[NodeId, ReplicaOffset]:
    lag_max = place.table.config.lag_max_bytes
    # Where all replicas have reported, nobody has more than the best of them.
    are_all_here = len(reports) == len(place.partition.replicas)
    return {
        node: offset
        for node, offset in reports.items()
        if offset.is_candidate
        and (are_all_here or (offset.lag_bytes <= lag_max and node not in lagging))
    }


def _candidates_by_quorum(
    place: TablePartition, reports: Mapping[NodeId, ReplicaOffset]
) -> dict[NodeId, ReplicaOffset]:
    replicas, unproven = place.partition.replicas, place.partition.unproven
    needed = len(replicas) - place.table.config.min_replicas + 1
    if len(reports) < len(replicas):
        reports = {node: offset for node, offset in reports.items() if node not in unproven}
    if len(reports) < needed:
        return {}
    most = max(offset.position for offset in reports.values())
    return {
        node: offset
        for node, offset in reports.items()
        if offset.is_candidate and offset.position == most
    }


def _chosen(view: PlanningView, candidates: Mapping[NodeId, ReplicaOffset]) -> NodeId | None:
    if not candidates:
        return None
    most = max(offset.position for offset in candidates.values())
    equals = [node for node, offset in candidates.items() if offset.position == most]
    return min(equals, key=lambda node: (view.masters[node], node))


def marks(view: PlanningView, place: TablePartition) -> MarkSlaves | None:
    """For a partition whose master is up: slaves that fell behind, or have caught up."""
    before = place.partition
    master = before.master
    if master is None or not view.heard(master).is_heard:
        return None
    lagging = tuple(
        slave for slave in before.slaves if _is_lagging(view, place, slave, master=master)
    )
    unproven = tuple(
        slave for slave in before.unproven if not _is_proven(view, place, slave, master=master)
    )
    if sorted(lagging) == sorted(before.lagging) and unproven == before.unproven:
        return None
    return MarkSlaves(place.table.name, place.number, before.epoch, lagging, unproven)


def _is_proven(view: PlanningView, place: TablePartition, slave: NodeId, *, master: NodeId) -> bool:
    """Whether it has all that its master had when that knew of the replicas that there are now."""
    has, needed = view.offset(slave, place), view.offset(master, place)
    return (
        has is not None
        and needed is not None
        and has.is_candidate
        and has.position >= needed.position
        and view.heard(master).applied_epoch >= place.partition.epoch
    )


def _is_lagging(
    view: PlanningView, place: TablePartition, slave: NodeId, *, master: NodeId
) -> bool:
    lag_max, down_ms = place.table.config.lag_max_bytes, view.settings.down_ms
    offset = view.offset(slave, place)
    missed_ms = view.missed_ms(slave, place, master)
    if slave not in place.partition.lagging:
        is_behind = offset is not None and offset.lag_bytes > lag_max
        known_ms = view.heard(master).at_ms - view.seen(place).master_ms
        return is_behind or (known_ms if missed_ms is None else missed_ms) > down_ms
    # Half of the bound, so that a slave about there is not marked again and again.
    has_caught_up = (
        offset is not None
        and view.is_up(slave)
        and offset.is_candidate
        and offset.lag_bytes <= lag_max // 2
        and missed_ms is not None
        and missed_ms <= down_ms
    )
    return not has_caught_up
