"""Masters go back to the nodes that are preferred for them, without losing a write.

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


def is_wanted(view: View, place: Place) -> bool:
    """Whether the preferred node of an active partition could become its master now."""
    before = place.partition
    preferred = before.preferred
    if preferred is None or preferred == before.master or preferred not in before.slaves:
        return False
    offset = view.offset(preferred, place)
    return (
        offset is not None
        and view.is_up(preferred)
        and offset.is_candidate
        and preferred not in before.lagging
        and offset.lag_bytes <= view.settings.handover_close_bytes
        and offset.contact_ms is not None
        and offset.contact_ms <= view.settings.lease_ms
        and view.reign.paused_until_ms.get(place.key, 0) <= view.now_ms
    )


def begin(view: View, places: list[Place], *, under_way: int) -> list[BeginHandover]:
    """The next of those that are wanted, as the bounds allow."""
    settings, reign = view.settings, view.reign
    is_soon = view.now_ms - reign.handover_begun_ms < settings.handover_every_ms
    if not places or under_way >= settings.handovers_max or is_soon:
        return []
    reign.handover_begun_ms = view.now_ms
    place = places[0]
    preferred = place.partition.preferred
    assert preferred is not None
    return [BeginHandover(place.table.name, place.number, place.partition.epoch, preferred)]
