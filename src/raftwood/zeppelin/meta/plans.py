"""Plans for a cluster: changes to a target placement, all made or none.

Pure functions of a topology, with the fewest moves: start reading at `balance`. Operators review a
`ClusterPlan` before they submit it.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final, Literal

import msgspec

from raftwood.base.errors import Conflict, InvalidInput, NotFound, Unavailable
from raftwood.zeppelin.meta.balancer import (
    BalancedTable,
    Balancer,
    NodeLayout,
    ReplicaSpread,
    SearchBudget,
)
from raftwood.zeppelin.meta.changes import (
    AddSlave,
    CancelMigration,
    Change,
    DoublePartitions,
    Migrate,
    RemoveNode,
    RemoveSlave,
    SetDraining,
    SetMaster,
)
from raftwood.zeppelin.meta.topology_state import TopologyState
from raftwood.zeppelin.model import NodeId, Partition, Table, Topology

CHANGES_PLANNED_MAX: Final = 10_000
"""Changes in one plan: the stores block while it is registered."""

MovedRole = Literal["master", "slave"]


class ReplicaMove(msgspec.Struct, frozen=True, kw_only=True):
    """Copies a replica to another node, then removes it from the first."""

    table: str
    partition: int
    source: NodeId
    target: NodeId
    role: MovedRole
    """Role of the replica at the source: a master is handed over, and writes wait for a moment."""


class MasterChange(msgspec.Struct, frozen=True, kw_only=True):
    """Makes another node the preferred master; no data moves."""

    table: str
    partition: int
    source: NodeId | None
    target: NodeId


class NodeCount(msgspec.Struct, frozen=True, kw_only=True):
    """A node's replicas and preferred masters before and after, in all planned tables."""

    node: NodeId
    replicas_before: int
    replicas_after: int
    masters_before: int
    masters_after: int


class ClusterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan; nothing happens before it is submitted, and then all of it or nothing."""

    epoch: int
    """Epoch of the topology that it was planned on."""
    changes: tuple[Change, ...]
    moves: tuple[ReplicaMove, ...] = ()
    masters: tuple[MasterChange, ...] = ()
    """The new preferred masters, moved or not."""
    moves_min: int = 0
    """No plan that leads to as even a cluster has fewer moves."""
    changes_later: int = 0
    """Changes beyond the limit of one plan: plan again once these are done."""
    nodes: tuple[NodeCount, ...] = ()
    uneven: tuple[str, ...] = ()
    """What stays uneven, and why."""


# What a plan needs: a topology in which nothing moves, and nodes that are known.


def settled(topology: Topology) -> tuple[Topology, list[Change]]:
    """Returns a topology without waiting migrations, and the changes that cancel these: the plan
    replaces them. Raises `Conflict` if a migration is running.
    """
    waiting: list[Change] = []
    for table in topology.tables.values():
        if table.is_doubling:
            raise Conflict(f"table {table.name!r} doubles: wait until it has all its partitions")
        for number, partition in enumerate(table.partitions):
            if partition.migration is None:
                continue
            if partition.migration.target in partition.replicas:
                raise Conflict(
                    f"partition {number} of table {table.name!r} moves from "
                    f"{partition.migration.source!r} to {partition.migration.target!r}: wait until "
                    "nothing moves, or cancel it"
                )
            waiting.append(CancelMigration(table.name, number))
    if not waiting:
        return topology, waiting
    state = TopologyState(topology)
    state.apply(tuple(waiting))
    return msgspec.structs.replace(state.topology, epoch=topology.epoch), waiting


def check_nodes(topology: Topology, nodes: Collection[NodeId]) -> None:
    for node in nodes:
        if node not in topology.nodes:
            raise NotFound(f"there is no node {node!r}: see the status for those that there are")


def check_able(topology: Topology, nodes: Collection[NodeId]) -> None:
    """Raises if one of the nodes cannot get replicas."""
    check_nodes(topology, nodes)
    for node in nodes:
        if not topology.nodes[node].is_up:
            raise Unavailable(f"node {node!r} is down: start it first")
        if topology.nodes[node].is_draining:
            raise Conflict(f"node {node!r} is being emptied: end that first by drain --undo")


def tables_of(topology: Topology, name: str | None) -> Sequence[Table]:
    """Returns one table, or all."""
    if name is None:
        return [table for _, table in sorted(topology.tables.items())]
    if name not in topology.tables:
        raise NotFound(f"there is no table {name!r}: check its name")
    return [topology.tables[name]]


# Plans for one partition, and for forgetting nodes, for review before they are made.


def migrate(
    topology: Topology, *, table: str, partition: int, source: NodeId, target: NodeId
) -> ClusterPlan:
    """Plans the move of one replica."""
    found = _partition(topology, table, partition)
    check_able(topology, [target])
    move = ReplicaMove(
        table=table,
        partition=partition,
        source=source,
        target=target,
        role="master" if found.master == source else "slave",
    )
    return _checked(topology, Migrate(table, partition, source, target), moves=(move,))


def add_slave(topology: Topology, *, table: str, partition: int, node: NodeId) -> ClusterPlan:
    """Plans one replica more."""
    check_able(topology, [node])
    return _checked(topology, AddSlave(table, partition, node))


def remove_slave(topology: Topology, *, table: str, partition: int, node: NodeId) -> ClusterPlan:
    """Plans one replica less."""
    return _checked(topology, RemoveSlave(table, partition, node))


def set_master(topology: Topology, *, table: str, partition: int, node: NodeId) -> ClusterPlan:
    """Plans another preferred master among the replicas."""
    old = _partition(topology, table, partition).preferred
    change = MasterChange(table=table, partition=partition, source=old, target=node)
    return _checked(topology, SetMaster(table, partition, node), masters=(change,))


def double(topology: Topology, table: str) -> ClusterPlan:
    """Plans twice as many partitions; each splits in place, and nothing moves."""
    return _checked(topology, DoublePartitions(table))


def remove_nodes(topology: Topology, nodes: Collection[NodeId]) -> ClusterPlan:
    """Plans to forget nodes that are stopped and empty."""
    check_nodes(topology, nodes)
    return _checked(topology, *(RemoveNode(node) for node in sorted(nodes)))


def _checked(
    topology: Topology,
    *changes: Change,
    moves: tuple[ReplicaMove, ...] = (),
    masters: tuple[MasterChange, ...] = (),
) -> ClusterPlan:
    """Returns the plan; raises at once what the rules would refuse."""
    for refused in TopologyState(topology).apply(changes).results:
        if refused is not None:
            raise refused.error()
    return ClusterPlan(
        epoch=topology.epoch,
        changes=changes,
        moves=moves,
        masters=masters,
        moves_min=len(moves),
    )


def _partition(topology: Topology, table: str, number: int) -> Partition:
    found = topology.tables.get(table)
    if found is None:
        raise NotFound(f"there is no table {table!r}: check its name")
    if not 0 <= number < len(found.partitions):
        raise NotFound(
            f"table {table!r} has no partition {number}: give 0 to {len(found.partitions) - 1}"
        )
    return found.partitions[number]


# One node replaces another: it gets that node's replicas and masters.


def replaced(layout: NodeLayout, table: Table, new: int, looks: SearchBudget) -> BalancedTable:
    """Replaces the leaving node by a new one. What the new node has already goes to a third one."""
    (old,) = layout.leaving
    items = layout.items(table)
    layout.check_room(table, items)
    spread = ReplicaSpread(
        items, able=layout.able, leaving=layout.leaving, domains=layout.domains, looks=looks
    )
    quotas = spread.loads()
    quotas[new] += quotas[old]
    quotas[old] = 0
    present = [
        None if each.preferred is None else layout.numbers.get(each.preferred)
        for each in table.partitions
    ]
    moved = spread.load(old)
    spread.even(quotas, present, [0] * len(quotas))
    if spread.load(old):
        raise Unavailable(
            f"node {layout.ids[new]!r} cannot have all that node {layout.ids[old]!r} has of table "
            f"{table.name!r}: that would put replicas into one failure domain; start a node in "
            "another one, or ask for fewer domains"
        )
    masters = [
        node if node is None or node in spread.now[number] else _heir(spread, number, new)
        for number, node in enumerate(present)
    ]
    return BalancedTable(
        table=table,
        before=items,
        after=spread.now,
        masters_before=present,
        masters_after=masters,
        moves_min=moved,
        uneven=[],
    )


def _heir(spread: ReplicaSpread, number: int, new: int) -> int:
    """Returns the new node, or the third one that got the replica instead."""
    came = sorted(spread.now[number] - spread.before[number])
    return new if new in came else came[0]


# Turns a target placement into a `ClusterPlan`: the changes that lead there.


def drafted(
    topology: Topology,
    layout: NodeLayout,
    outcomes: Sequence[BalancedTable],
    first: Sequence[Change],
) -> ClusterPlan:
    """Returns a plan that leads to these outcomes, after the changes in `first`."""
    moves: list[ReplicaMove] = []
    masters: list[MasterChange] = []
    changes: list[Change] = list(first)
    later = 0
    found = [
        (outcome, number, *_pairs(topology, layout, outcome, number))
        for outcome in outcomes
        for number in range(len(outcome.before))
    ]
    # Copies first: a change of masters alone takes only a moment.
    for outcome, number, prefer, pairs in sorted(found, key=lambda each: not each[3]):
        name = outcome.table.name
        planned: list[Change] = [] if prefer is None else [SetMaster(name, number, prefer)]
        planned += [Migrate(name, number, source, target) for source, target in pairs]
        if len(changes) + len(planned) > CHANGES_PLANNED_MAX:
            later += len(planned)
            continue
        changes += planned
        moves += _moves(outcome, number, pairs)
        masters += _master(layout, outcome, number)
    changes = [
        Migrate(each.table, each.partition, each.source, each.target, len(moves))
        if isinstance(each, Migrate)
        else each
        for each in changes
    ]
    return ClusterPlan(
        epoch=topology.epoch,
        changes=tuple(changes),
        moves=tuple(moves),
        masters=tuple(masters),
        moves_min=sum(each.moves_min for each in outcomes),
        changes_later=later,
        nodes=_counts(layout, outcomes),
        uneven=tuple(text for each in outcomes for text in each.uneven),
    )


def _pairs(
    topology: Topology, layout: NodeLayout, outcome: BalancedTable, number: int
) -> tuple[NodeId | None, list[tuple[NodeId, NodeId]]]:
    """Returns the master to prefer before the moves, if it changes, and the moves.

    A target inherits its source's preference, so it ends as master if its source is preferred
    first.
    """
    before, after = set(outcome.before[number]), outcome.after[number]
    old, new = outcome.masters_before[number], outcome.masters_after[number]
    sources, targets = sorted(before - after), sorted(after - before)
    # Sources that are down first: their partitions lack replicas.
    sources.sort(key=lambda node: topology.nodes[layout.ids[node]].is_up)
    chosen: dict[int, int] = {}
    prefer = new
    if new is not None and new in targets:
        prefer = old if old in sources else sources[0]
        chosen[prefer] = new
        targets.remove(new)
    for source in sources:
        if source not in chosen:
            near = [each for each in targets if layout.domains[each] == layout.domains[source]]
            chosen[source] = (near or targets)[0]
            targets.remove(chosen[source])
    pairs = [(layout.ids[source], layout.ids[chosen[source]]) for source in sources]
    is_kept = prefer is None or prefer == old
    return None if is_kept or prefer is None else layout.ids[prefer], pairs


def _moves(
    outcome: BalancedTable, number: int, pairs: Sequence[tuple[NodeId, NodeId]]
) -> Iterator[ReplicaMove]:
    master = outcome.table.partitions[number].master
    for source, target in pairs:
        yield ReplicaMove(
            table=outcome.table.name,
            partition=number,
            source=source,
            target=target,
            role="master" if source == master else "slave",
        )


def _master(layout: NodeLayout, outcome: BalancedTable, number: int) -> Iterator[MasterChange]:
    old, new = outcome.masters_before[number], outcome.masters_after[number]
    if new is not None and new != old:
        yield MasterChange(
            table=outcome.table.name,
            partition=number,
            source=None if old is None else layout.ids[old],
            target=layout.ids[new],
        )


def _counts(layout: NodeLayout, outcomes: Sequence[BalancedTable]) -> tuple[NodeCount, ...]:
    counts = [[0, 0, 0, 0] for _ in layout.ids]
    for outcome in outcomes:
        for place, items in ((0, outcome.before), (1, outcome.after)):
            for nodes in items:
                for node in nodes:
                    counts[node][place] += 1
        for place, masters in ((2, outcome.masters_before), (3, outcome.masters_after)):
            for leader in masters:
                if leader is not None:
                    counts[leader][place] += 1
    return tuple(
        NodeCount(
            node=node,
            replicas_before=count[0],
            replicas_after=count[1],
            masters_before=count[2],
            masters_after=count[3],
        )
        for node, count in zip(layout.ids, counts, strict=True)
    )


# Plans for many partitions: nodes come, go, replace others, or share more evenly.
#
# All plans have the fewest moves, start from a topology in which nothing moves, and are
# deterministic.


def balance(topology: Topology, *, table: str | None = None) -> ClusterPlan:
    """Plans replicas and masters of each table evenly over the nodes, to within one, and replicas
    of each partition over failure domains; draining nodes give everything away.
    """
    before, first = settled(topology)
    leaving = [node for node, each in before.nodes.items() if each.is_draining]
    layout = NodeLayout(before, leaving)
    _check_any(layout)
    evening = Balancer(layout, is_balanced=True)
    outcomes = [evening.of(each) for each in tables_of(before, table)]
    return drafted(before, layout, outcomes, first)


def expand(topology: Topology, nodes: Collection[NodeId] = ()) -> ClusterPlan:
    """Plans a share for new nodes only: these nodes, or all that have less than half of theirs."""
    before, first = settled(topology)
    check_able(before, nodes)
    layout = NodeLayout(before, ())
    receivers = [layout.numbers[node] for node in sorted(nodes)] or _with_little(before, layout)
    if not receivers:
        raise InvalidInput("no node has less than half of its share: name nodes, or balance")
    evening = Balancer(layout, is_balanced=True, receivers=receivers)
    outcomes = [evening.of(each) for each in tables_of(before, None)]
    return drafted(before, layout, outcomes, first)


def drain(
    topology: Topology, nodes: Collection[NodeId], *, fewer_domains: bool = False
) -> ClusterPlan:
    """Plans to empty nodes, which get nothing new; their replicas go to the nodes with the least.

    They may be down: their partitions are copied from other replicas.
    """
    before, first = settled(topology)
    check_nodes(before, nodes)
    if not nodes:
        raise InvalidInput("no node is named: say which are to be emptied")
    also = [node for node, each in before.nodes.items() if each.is_draining]
    leaving = sorted({*nodes, *also})
    first += [SetDraining(node, True) for node in leaving if not before.nodes[node].is_draining]
    layout = NodeLayout(before, leaving, has_domains=not fewer_domains)
    evening = Balancer(layout, is_balanced=False)
    outcomes = [evening.of(each) for each in tables_of(before, None)]
    return drafted(before, layout, outcomes, first)


def undo_drain(topology: Topology, nodes: Collection[NodeId]) -> ClusterPlan:
    """Plans to end a drain; `balance` brings the nodes their share back."""
    before, first = settled(topology)
    check_nodes(before, nodes)
    for node in nodes:
        if not before.nodes[node].is_draining:
            raise Conflict(f"node {node!r} is not being emptied: see the status")
    first += [SetDraining(node, False) for node in sorted(nodes)]
    return ClusterPlan(epoch=topology.epoch, changes=tuple(first))


def replace_node(
    topology: Topology, *, old: NodeId, new: NodeId, fewer_domains: bool = False
) -> ClusterPlan:
    """Plans to move everything from one node to another; the old one may be down."""
    before, first = settled(topology)
    check_nodes(before, [old])
    check_able(before, [new])
    if old == new:
        raise InvalidInput(f"node {old!r} cannot replace itself: name another one")
    changes: list[Change] = list(first)
    if not before.nodes[old].is_draining:
        changes.append(SetDraining(old, True))
    layout = NodeLayout(before, [old], has_domains=not fewer_domains)
    looks, number = SearchBudget(), layout.numbers[new]
    outcomes = [replaced(layout, each, number, looks) for each in tables_of(before, None)]
    return drafted(before, layout, outcomes, changes)


def _with_little(topology: Topology, layout: NodeLayout) -> list[int]:
    loads = dict.fromkeys(layout.able, 0)
    for table in topology.tables.values():
        for nodes in layout.items(table):
            for node in nodes:
                if node in loads:
                    loads[node] += 1
    total = sum(loads.values())
    return [node for node, load in loads.items() if 2 * load * len(loads) < total]


def _check_any(layout: NodeLayout) -> None:
    if not layout.able:
        raise Unavailable("no node may have anything: start some")
