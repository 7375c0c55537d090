"""What a leader proposes, from the topology and from what it heard: one batch at a time.

A plan holds its store up while it is made, so each has a bound: of partitions without a master so
many at a time get one, and of those where all is well some are looked at each time, in turn.
"""

from typing import Final

from raftwood.zeppelin.meta import handover
from raftwood.zeppelin.meta.changes import CHANGES_MAX, BeginHandover, Change, NodeDown, NodeUp
from raftwood.zeppelin.meta.failover import demotion, failover, is_unfit, marks
from raftwood.zeppelin.meta.heard import Reign
from raftwood.zeppelin.meta.settings import ZeppelinMetaSettings
from raftwood.zeppelin.meta.view import Place, View
from raftwood.zeppelin.model import Topology

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
    leaving: list[BeginHandover] = []
    going_home: list[BeginHandover] = []
    under_way = failovers = 0
    turns = _Turns(view)
    for table in view.topology.tables.values():
        for number, partition in enumerate(table.partitions):
            is_turn = turns.next()
            is_led, is_stuck = view.is_up(partition.master), partition.target is not None
            if is_led and not (is_turn or is_stuck or view.is_leaving(partition.master)):
                continue
            place = Place(table, number)
            change: Change | None = None
            if not is_led:
                if failovers < FAILOVERS_MAX:
                    change = failover(view, place)
                    failovers += change is not None
            elif is_unfit(view, place):
                change = demotion(view, place)
            elif is_stuck:
                under_way += 1
                change = handover.next_step(view, place)
            else:
                change = marks(view, place)
                if change is None and (begun := handover.wanted(view, place)) is not None:
                    (leaving if view.is_leaving(partition.master) else going_home).append(begun)
            if change is not None:
                changes.append(change)
    return [*changes, *handover.begin(view, leaving, going_home, under_way=under_way)]


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
