"""Failover: chooses a master where the master is gone, and marks slaves that have missed too much.

Zeppelin's text (sections 1.1 and 2.2) has the meta server declare a node down and make one of the
slaves master. It does not say which one may, nor how to know that the old one has stopped;
docs/decisions/0018 does, and these are its rules. Planted bugs are in
`tests/kits/zeppelin/meta/world/mutants.py` and `tests/kits/zeppelin/simulation/mutants.py`.

The chosen replica has the most among those that may be chosen. Where each write is acked by one
replica alone, those are the slaves within the table's lag bound that were in contact with the
master. A slave that was not is marked in the topology, so that the next leader of the meta server
does not forget it: a slave that was cut off for an hour comes back, the master dies, and an hour of
acked writes would be gone (`test_what_a_leader_found_stale_stays_so_for_the_next_leader`; planted
bug "a stale replica").

Where writes are acked by two replicas or more, the choice waits until so many have reported that
each acked write is on one of them: then the one with the most has them all. A choice among those
that happen to answer may miss the one replica that has the last acked write (planted bug "no
quorum"; `test_with_two_acks_the_choice_waits_for_those_who_may_have_them`).

A master that is up and cannot lead first loses its role; once all replicas know that, one is
chosen.
"""

from collections.abc import Mapping, Sequence

from raftwood.zeppelin.meta.changes import ChangeMaster, MarkSlaves
from raftwood.zeppelin.meta.heartbeats import PlanningView, ReplicaOffset, TablePartition
from raftwood.zeppelin.model import NodeId


def is_unfit(view: PlanningView, place: TablePartition) -> bool:
    """Whether a master that is up and knows its role has no replica to lead with.

    Its engine cannot be opened, or it was rewinding when it became master. Heartbeats come all the
    same, so that the node is never declared down, and the partition would refuse every request
    until an operator notices (`test_a_master_that_cannot_open_its_replica_is_replaced`; planted bug
    "unfit masters stay").
    """
    master = place.partition.master
    assert master is not None
    offset = view.offset(master, place)
    return (
        (offset is None or not offset.is_candidate)
        and view.heard(master).applied_epoch >= place.partition.epoch
        # A partition that the node was just given may still be opening
        # (`test_what_was_just_given_to_a_node_may_be_opening`).
        and view.now_ms - view.seen(place).epoch_ms >= view.settings.lease_ms
    )


def demotion(view: PlanningView, place: TablePartition) -> ChangeMaster:
    """Takes an unfit master out of office, and names no other yet.

    The node may not have received the change, and may begin to lead after all. So the choice waits
    until it knows (`test_a_master_that_repairs_is_replaced_once_all_know_that_it_is_none`). A slave
    without any contact with it has missed nothing: that master has not led.
    """
    before = place.partition
    assert before.master is not None
    down_ms = view.settings.down_ms
    missed = {slave: view.missed_ms(slave, place, before.master) or 0 for slave in before.slaves}
    lagging = tuple(slave for slave in before.slaves if missed[slave] > down_ms)
    return ChangeMaster(place.table.name, place.number, before.epoch, None, lagging)


def failover(view: PlanningView, place: TablePartition) -> ChangeMaster | None:
    """The change for a partition without a master that is up; None: there is nothing to do yet.

    All replicas that are up must have reported: the silent one may have the most. It will report,
    or be down itself (`test_nobody_is_chosen_before_all_that_are_up_have_told_how_far_they_are`).
    """
    before = place.partition
    up = [node for node in before.replicas if view.is_up(node)]
    if not all(_has_reported(view, place, node) for node in up):
        return None
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
        # A replica that is away misses the new master's records, and one that has less lacks
        # records that the old master acked. Both are marked until they have caught up: a second
        # failover a moment later must not choose them
        # (`test_whoever_has_less_than_the_new_master_has_to_show_that_it_caught_up`).
        most = reports[master].position
        behind = [
            node for node in before.replicas if node not in reports or reports[node].position < most
        ]
        lagging = (*lagging, *behind)
    run = None if master is None else view.topology.nodes[master].run
    return ChangeMaster(place.table.name, place.number, before.epoch, master, lagging, run)


def _has_reported(view: PlanningView, place: TablePartition, node: NodeId) -> bool:
    """Whether a replica reported its position as of a time when no master could write any more.

    A slave reports record 90, then takes 91 to 100, which are acked to clients. A choice by the
    first message could take another slave with 95, and cut five acked writes (planted bug "stale
    offsets choose a master").
    """
    heard, master = view.heard(node), place.partition.master
    if master is None:
        # A node that knows that there is no master takes and writes nothing.
        return heard.is_heard and heard.applied_epoch >= place.partition.epoch
    # The old master may serve until its lease has ended, counted from its last heartbeat. `at_ms`
    # of the replica proves nothing: its message may have traveled for long, and describe a time
    # when the master still wrote (planted bug "judged by arrival";
    # `test_a_word_that_was_long_on_its_way_says_nothing_of_now`).
    end_of_writes_ms = view.heard(master).at_ms + view.settings.lease_ms
    return heard.after_ms is not None and heard.after_ms >= end_of_writes_ms


def _lagging(view: PlanningView, place: TablePartition) -> tuple[NodeId, ...]:
    """Returns slaves that are marked, or that the master left behind in this leader's term."""
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
    # If all replicas have reported, none has more than the best of them: marks and lag, which are
    # guesses about the others, do not matter.
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
    # With three replicas and two acks, any two of them contain one that has the last acked write.
    # That counts replicas from which acks came: an `unproven` one was there when another replica
    # was removed, and the write may have been on that one and the master alone (planted bug
    # "proven at once";
    # `test_after_a_replica_is_removed_the_others_show_that_they_have_what_it_acked`).
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
    # Among equals the node with the fewest masters. The text complains (section 2.3) that one
    # failover after the other leaves a few nodes with most masters, and so with all the load
    # (`test_among_equals_the_one_with_the_fewest_masters_is_chosen`).
    equals = [node for node, offset in candidates.items() if offset.position == most]
    return min(equals, key=lambda node: (view.masters[node], node))


def marks(view: PlanningView, place: TablePartition) -> MarkSlaves | None:
    """Returns the marks to change if the master is up: slaves fell behind, or caught up."""
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
    """Whether a slave has all that its master had when the master learned of the present replicas.

    Earlier acks of the master may have counted the replica that was removed.
    """
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
    # Half of the bound: a slave at the bound itself would be marked and cleared again and again,
    # and each mark is a change of the topology that all nodes fetch.
    has_caught_up = (
        offset is not None
        and view.is_up(slave)
        and offset.is_candidate
        and offset.lag_bytes <= lag_max // 2
        and missed_ms is not None
        and missed_ms <= down_ms
    )
    return not has_caught_up
