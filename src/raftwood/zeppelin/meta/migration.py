"""The next step of each migration, from what its partition and its replicas say.

Nothing of a migration is kept but its order: its target becomes a slave when its turn comes; while
the source is master, it is handed over, as any master is (`handover`); and once the others do well
without the source, it leaves. So whoever leads goes on with what it finds, and a failover amid a
migration only changes who is master.

Those under way are few, and are looked at in each plan; of those that wait, some are.
"""

from collections import Counter

from raftwood.zeppelin.meta.catch_up import CatchUp
from raftwood.zeppelin.meta.changes import (
    AddTarget,
    CancelHandover,
    EndMigration,
    RemoveTarget,
    SlowDown,
)
from raftwood.zeppelin.meta.handover import is_close, is_near
from raftwood.zeppelin.meta.heard import Offset
from raftwood.zeppelin.meta.view import Place, View
from raftwood.zeppelin.model import Migration, NodeId, PartitionState

Step = EndMigration | RemoveTarget | SlowDown | CancelHandover


class Moves:
    """The migrations under way that one plan has met, and which may begin besides them."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._under_way = 0
        self._by_node: Counter[NodeId] = Counter()

    def look_at(self, place: Place) -> None:
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
            place = Place(view.topology.tables[name], number)
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


def next_step(view: View, place: Place) -> Step | None:
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


def _is_gone(view: View, target: NodeId) -> bool:
    """Whether the partition does better without it: a replica more that is down is one more that
    has to be heard where a master is chosen.
    """
    silent_ms = view.now_ms - view.heard(target).at_ms
    return not view.is_up(target) and silent_ms >= view.settings.target_gone_ms


def _is_slow_in_vain(view: View, place: Place) -> bool:
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


def _is_left_behind(view: View, place: Place) -> bool:
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


def _is_far(view: View, target: NodeId, offset: Offset) -> bool:
    """Behind a master that streams to it; a copy takes as long as it takes."""
    return (
        view.is_up(target)
        and offset.is_streaming
        and offset.is_candidate
        and offset.contact_ms is not None
        and offset.contact_ms <= view.settings.lease_ms
        and not is_near(view, offset)
    )


def _can_end(view: View, place: Place) -> bool:
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


def _is_well(view: View, place: Place, target: NodeId) -> bool:
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


def _migration(place: Place) -> Migration:
    moved = place.partition.migration
    assert moved is not None
    return moved
