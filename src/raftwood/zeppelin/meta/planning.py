"""What a leader proposes, from the topology and from what it heard: one batch at a time."""

from raftwood.zeppelin.meta import handover
from raftwood.zeppelin.meta.changes import CHANGES_MAX, BeginHandover, Change, NodeDown, NodeUp
from raftwood.zeppelin.meta.failover import demotion, failover, is_unfit, marks
from raftwood.zeppelin.meta.heard import Reign
from raftwood.zeppelin.meta.settings import ZeppelinMetaSettings
from raftwood.zeppelin.meta.view import Place, View
from raftwood.zeppelin.model import PartitionState, Topology


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
    under_way = 0
    for table in view.topology.tables.values():
        for number, partition in enumerate(table.partitions):
            place = Place(table, number)
            change: Change | None
            if not view.is_up(partition.master):
                change = failover(view, place)
            elif is_unfit(view, place):
                change = demotion(view, place)
            elif partition.state is PartitionState.STUCK:
                under_way += 1
                change = handover.next_step(view, place)
            else:
                change = marks(view, place)
                if change is None and (begun := handover.wanted(view, place)) is not None:
                    (leaving if view.is_leaving(partition.master) else going_home).append(begun)
            if change is not None:
                changes.append(change)
    return [*changes, *handover.begin(view, leaving, going_home, under_way=under_way)]
