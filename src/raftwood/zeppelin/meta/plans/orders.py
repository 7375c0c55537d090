"""Plans for many partitions: nodes come, go, take another's place, or share more evenly.

All are made with the fewest moves, of a topology in which nothing is under way, and are the same
whoever makes them.
"""

from collections.abc import Collection

from raftwood.base.errors import Conflict, InvalidInput, Unavailable
from raftwood.zeppelin.meta.changes import Change, SetDraining
from raftwood.zeppelin.meta.plans.drafting import drafted
from raftwood.zeppelin.meta.plans.evening import Evening
from raftwood.zeppelin.meta.plans.layout import Layout
from raftwood.zeppelin.meta.plans.plan import Plan
from raftwood.zeppelin.meta.plans.quotas import Looks
from raftwood.zeppelin.meta.plans.replacing import replaced
from raftwood.zeppelin.meta.plans.settling import check_able, check_nodes, settled, tables_of
from raftwood.zeppelin.model import NodeId, Topology


def balance(topology: Topology, *, table: str | None = None) -> Plan:
    """Replicas and masters of each table evenly over the nodes, to within one, and replicas of each
    partition over failure domains; nodes that are being emptied give everything.
    """
    before, first = settled(topology)
    leaving = [node for node, each in before.nodes.items() if each.is_draining]
    layout = Layout(before, leaving)
    _check_any(layout)
    evening = Evening(layout, is_balanced=True)
    outcomes = [evening.of(each) for each in tables_of(before, table)]
    return drafted(before, layout, outcomes, first)


def expand(topology: Topology, nodes: Collection[NodeId] = ()) -> Plan:
    """Give new nodes their share, and nobody else anything: these nodes, or all that have less than
    half of it.
    """
    before, first = settled(topology)
    check_able(before, nodes)
    layout = Layout(before, ())
    receivers = [layout.numbers[node] for node in sorted(nodes)] or _with_little(before, layout)
    if not receivers:
        raise InvalidInput("no node has less than half of its share: name nodes, or balance")
    evening = Evening(layout, is_balanced=True, receivers=receivers)
    outcomes = [evening.of(each) for each in tables_of(before, None)]
    return drafted(before, layout, outcomes, first)


def drain(topology: Topology, nodes: Collection[NodeId], *, fewer_domains: bool = False) -> Plan:
    """Empty nodes, and let them have nothing new; what they have goes to those with the least.

    They may be down: what they had is copied from others.
    """
    before, first = settled(topology)
    check_nodes(before, nodes)
    if not nodes:
        raise InvalidInput("no node is named: say which are to be emptied")
    also = [node for node, each in before.nodes.items() if each.is_draining]
    leaving = sorted({*nodes, *also})
    first += [SetDraining(node, True) for node in leaving if not before.nodes[node].is_draining]
    layout = Layout(before, leaving, has_domains=not fewer_domains)
    evening = Evening(layout, is_balanced=False)
    outcomes = [evening.of(each) for each in tables_of(before, None)]
    return drafted(before, layout, outcomes, first)


def undo_drain(topology: Topology, nodes: Collection[NodeId]) -> Plan:
    """Nodes may have something again; what has left them comes back by `balance`."""
    before, first = settled(topology)
    check_nodes(before, nodes)
    for node in nodes:
        if not before.nodes[node].is_draining:
            raise Conflict(f"node {node!r} is not being emptied: see the status")
    first += [SetDraining(node, False) for node in sorted(nodes)]
    return Plan(epoch=topology.epoch, changes=tuple(first))


def replace_node(
    topology: Topology, *, old: NodeId, new: NodeId, fewer_domains: bool = False
) -> Plan:
    """All that one node has goes to another one; the old one may be down."""
    before, first = settled(topology)
    check_nodes(before, [old])
    check_able(before, [new])
    if old == new:
        raise InvalidInput(f"node {old!r} cannot replace itself: name another one")
    changes: list[Change] = list(first)
    if not before.nodes[old].is_draining:
        changes.append(SetDraining(old, True))
    layout = Layout(before, [old], has_domains=not fewer_domains)
    looks, number = Looks(), layout.numbers[new]
    outcomes = [replaced(layout, each, number, looks) for each in tables_of(before, None)]
    return drafted(before, layout, outcomes, changes)


def _with_little(topology: Topology, layout: Layout) -> list[int]:
    loads = dict.fromkeys(layout.able, 0)
    for table in topology.tables.values():
        for nodes in layout.items(table):
            for node in nodes:
                if node in loads:
                    loads[node] += 1
    total = sum(loads.values())
    return [node for node, load in loads.items() if 2 * load * len(loads) < total]


def _check_any(layout: Layout) -> None:
    if not layout.able:
        raise Unavailable("no node may have anything: start some")
