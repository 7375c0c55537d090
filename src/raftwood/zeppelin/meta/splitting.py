"""Partitions of a table that doubles are split, each in its turn, without losing a write.

The master is frozen as for a hand-over, and tells how far it came. Once all slaves that are well
are as far, there are two partitions: each node has both then, from what it has of the first.
"""

from collections.abc import Mapping

from raftwood.zeppelin.meta.changes import BeginSplit, CancelSplit, EndSplit
from raftwood.zeppelin.meta.handover import is_close
from raftwood.zeppelin.meta.split_rules import unsplit
from raftwood.zeppelin.meta.view import Place, View
from raftwood.zeppelin.model import NodeId


def next_step(view: View, place: Place) -> EndSplit | CancelSplit | None:
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


def _needed(view: View, place: Place) -> list[NodeId] | None:
    """The slaves that have to be as far as the master is; others take a whole copy afterwards.

    None where they are too few for a write to be acked: what is acked later of the one partition,
    as a record from before the split, they must have of the other one, too.
    """
    before, least = place.partition, place.table.config.min_replicas
    well = [each for each in before.slaves if view.is_up(each) and each not in before.lagging]
    return None if 1 + len(well) < least else well


class Wanted:
    """The splits that one plan would begin."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._unsplit: Mapping[str, frozenset[int]] = {
            name: unsplit(table.partitions, table.config.partitions)
            for name, table in view.topology.tables.items()
        }
        self._found: list[tuple[BeginSplit, tuple[NodeId, ...]]] = []

    def look_at(self, place: Place) -> bool:
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
