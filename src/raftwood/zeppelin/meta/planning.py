"""What a leader proposes, from the topology and from what it heard: one batch at a time.

A plan holds its store up while it is made, so each has a bound: of partitions without a master so
many at a time get one, and of those where all is well some are looked at each time, in turn. Those
that are being handed over or moved are few, and looked at each time.
"""

from typing import Final

from raftwood.zeppelin.meta import handover, migration, splitting
from raftwood.zeppelin.meta.changes import CHANGES_MAX, Change, NodeDown, NodeUp
from raftwood.zeppelin.meta.failover import demotion, failover, is_unfit, marks
from raftwood.zeppelin.meta.heard import Reign
from raftwood.zeppelin.meta.settings import ZeppelinMetaSettings
from raftwood.zeppelin.meta.view import Place, View
from raftwood.zeppelin.model import PartitionState, Topology

FAILOVERS_MAX: Final = 2_000
LOOKED_AT_MAX: Final = 1_000


def plan(
    topology: Topology, reign: Reign, settings: ZeppelinMetaSettings, now_ms: int
) -> tuple[Change, ...]:
    """All that is to be changed now; the reign remembers what was decided."""
    reign.note(topology, now_ms)
    view = View(topology, reign, settings, now_ms)
    changes: list[Change] = [NodeDown(node, topology.nodes[node].run) for node in view.downs]
    changes += [NodeUp(node, topology.nodes[node].run) for node in view.ups]
    changes += _of_partitions(view)
    for node in view.downs:
        reign.condemned[node] = topology.nodes[node].run
    return tuple(changes[:CHANGES_MAX])


def _of_partitions(view: View) -> list[Change]:
    changes: list[Change] = []
    handovers, moves, turns = handover.Wanted(view), migration.Moves(view), _Turns(view)
    splits = splitting.Wanted(view)
    failovers = 0
    for table in view.topology.tables.values():
        for number, partition in enumerate(table.partitions):
            is_turn = turns.next()
            is_led = view.is_up(partition.master)
            is_stuck = partition.state is PartitionState.STUCK
            is_moving = partition.migration is not None and partition.is_moving
            is_urgent = is_stuck or is_moving or view.is_leaving(partition.master)
            if is_led and not (is_turn or is_urgent):
                continue
            place = Place(table, number)
            change: Change | None = None
            if is_moving:
                moves.look_at(place)
            if not is_led:
                if failovers < FAILOVERS_MAX:
                    change = failover(view, place)
                    failovers += change is not None
            elif is_unfit(view, place):
                change = demotion(view, place)
            elif is_stuck:
                handovers.under_way += 1
                step = splitting.next_step if partition.is_splitting else handover.next_step
                change = step(view, place)
            else:
                change = marks(view, place)
                if change is None and is_moving:
                    change = migration.next_step(view, place)
                if change is None and not splits.look_at(place):
                    handovers.look_at(place)
            if change is not None:
                changes.append(change)
    begun = handovers.begun()
    room = view.settings.handovers_max - handovers.under_way - len(begun)
    return [*changes, *begun, *splits.begun(room=room), *moves.begun()]


class _Turns:
    """Which partitions are looked at this time: on from where the last plan ended."""

    def __init__(self, view: View) -> None:
        self._count = sum(len(table.partitions) for table in view.topology.tables.values())
        begin = view.reign.looked_at % self._count if self._count else 0
        view.reign.looked_at = begin + LOOKED_AT_MAX
        self._distance = -begin

    def next(self) -> bool:
        distance, self._distance = self._distance, self._distance + 1
        return distance % self._count < LOOKED_AT_MAX
