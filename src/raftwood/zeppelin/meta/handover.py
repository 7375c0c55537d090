"""Masters go back to the nodes that are preferred for them, and away from nodes that leave, without
losing a write.

The master is frozen while a slave that is close catches up: what it acks after that is nothing, and
how far it came it tells at the epoch of the freeze. Once the slave is exactly there, it is master.
"""

from raftwood.zeppelin.meta.changes import BeginHandover, CancelHandover, EndHandover
from raftwood.zeppelin.meta.view import Place, View
from raftwood.zeppelin.model import NodeId


def next_step(view: View, place: Place) -> EndHandover | CancelHandover | None:
    """For a partition that is stuck, and whose master is up."""
    before = place.partition
    name, number = place.table.name, place.number
    if before.master is not None and before.target is not None and view.is_up(before.target):
        if _has_all(view, place, before.target, master=before.master):
            return EndHandover(name, number, before.epoch)
        if view.now_ms - view.seen(place).epoch_ms < view.settings.handover_stuck_ms:
            return None
    view.reign.paused_until_ms[place.key] = view.now_ms + view.settings.handover_pause_ms
    return CancelHandover(name, number, before.epoch)


def _has_all(view: View, place: Place, target: NodeId, *, master: NodeId) -> bool:
    frozen, reached = view.offset(master, place), view.offset(target, place)
    is_frozen = view.heard(master).applied_epoch >= place.partition.epoch
    return (
        is_frozen
        and frozen is not None
        and reached is not None
        and reached.is_candidate
        and reached.position == frozen.position
    )


def wanted(view: View, place: Place) -> BeginHandover | None:
    """For an active partition whose master is up: to the preferred node where that is another, and
    from a master that leaves to some slave.
    """
    before = place.partition
    is_leaving = view.is_leaving(before.master)
    close = [
        slave
        for slave in before.slaves
        if (is_leaving or slave == before.preferred) and _is_close(view, place, slave)
    ]
    if not close or view.reign.paused_until_ms.get(place.key, 0) > view.now_ms:
        return None
    target = min(close, key=lambda node: (node != before.preferred, view.masters[node], node))
    view.masters[target] += 1
    return BeginHandover(place.table.name, place.number, before.epoch, target)


def _is_close(view: View, place: Place, slave: NodeId) -> bool:
    offset = view.offset(slave, place)
    return (
        offset is not None
        and view.is_up(slave)
        and not view.is_leaving(slave)
        and offset.is_candidate
        and slave not in place.partition.lagging
        and offset.lag_bytes <= view.settings.handover_close_bytes
        and offset.contact_ms is not None
        and offset.contact_ms <= view.settings.lease_ms
    )


def begin(
    view: View, leaving: list[BeginHandover], going_home: list[BeginHandover], *, under_way: int
) -> list[BeginHandover]:
    """The next of those that are wanted, as the bounds allow; who leaves does not wait."""
    settings, reign = view.settings, view.reign
    room = max(settings.handovers_max - under_way, 0)
    begun = leaving[:room]
    is_soon = view.now_ms - reign.handover_begun_ms < settings.handover_every_ms
    if going_home and len(begun) < room and not is_soon:
        reign.handover_begun_ms = view.now_ms
        begun.append(going_home[0])
    return begun
