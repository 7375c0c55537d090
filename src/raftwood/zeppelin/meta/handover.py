"""Masters go back to the nodes that are preferred for them, and away from nodes that leave, without
losing a write.

The master is frozen while a slave that is close catches up: what it acks after that is nothing, and
how far it came it tells at the epoch of the freeze. Once the slave is exactly there, it is master.
"""

from raftwood.zeppelin.meta.changes import BeginHandover, CancelHandover, EndHandover
from raftwood.zeppelin.meta.heard import Offset
from raftwood.zeppelin.meta.view import Place, View
from raftwood.zeppelin.model import Gap, NodeId, Partition, PartitionState


def next_step(view: View, place: Place) -> EndHandover | CancelHandover | None:
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


def _has_all(view: View, place: Place, target: NodeId, *, master: NodeId) -> bool:
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


def wanted(view: View, place: Place) -> BeginHandover | None:
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


def is_close(view: View, place: Place, slave: NodeId) -> bool:
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


def is_near(view: View, offset: Offset) -> bool:
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


class Wanted:
    """The hand-overs that one plan would begin, and how many are under way."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.under_way = 0
        self._leaving: list[BeginHandover] = []
        self._moving: list[tuple[int, BeginHandover]] = []
        self._going_home: list[BeginHandover] = []

    def look_at(self, place: Place) -> None:
        """At a partition whose master is up, and which is not frozen."""
        begun = wanted(self._view, place)
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
