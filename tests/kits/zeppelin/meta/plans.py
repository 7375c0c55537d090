"""Clusters to plan for, plans carried out at once, and what they have led to."""

import random
from collections import Counter

from raftwood.zeppelin.meta.changes import (
    AddTarget,
    AtEpoch,
    BeginHandover,
    CreateTable,
    EndHandover,
    EndMigration,
    Migrate,
    SetMaster,
)
from raftwood.zeppelin.meta.plans import ClusterPlan
from raftwood.zeppelin.meta.topology_state import TopologyState
from raftwood.zeppelin.model import NodeId, Partition, Table, TableConfig, Topology
from tests.kits.zeppelin.meta.tables import make, registered


def node(number: int) -> NodeId:
    return NodeId(f"n{number:03}")


def cluster(nodes: int, domains: int, *tables: tuple[int, int]) -> TopologyState:
    """Tables of so many partitions and replicas."""
    state = TopologyState()
    grow(state, range(nodes), domains)
    for number, (partitions, replicas) in enumerate(tables):
        config = TableConfig(partitions=partitions, replicas=replicas)
        make(state, CreateTable(f"t{number}", config))
    return state


def grow(state: TopologyState, numbers: range, domains: int) -> None:
    make(state, *(registered(node(each), domain=f"d{each % domains}") for each in numbers))


def carry_out(state: TopologyState, plan: ClusterPlan) -> None:
    """Register a plan, do what moves, and let masters go where they are preferred."""
    make(state, AtEpoch(plan.epoch), *plan.changes)
    for name in state.topology.tables:
        for number in range(len(state.topology.tables[name].partitions)):
            _carry_out(state, name, number)


def _carry_out(state: TopologyState, name: str, number: int) -> None:
    def partition() -> Partition:
        return state.topology.tables[name].partitions[number]

    while (migration := partition().migration) is not None:
        make(state, AddTarget(name, number, partition().epoch))
        if partition().master == migration.source:
            _hand_over(state, name, number, migration.target)
        make(state, EndMigration(name, number, partition().epoch))
    preferred = partition().preferred
    if preferred and preferred != partition().master and state.topology.nodes[preferred].is_up:
        _hand_over(state, name, number, preferred)


def _hand_over(state: TopologyState, name: str, number: int, target: NodeId) -> None:
    epoch = state.topology.tables[name].partitions[number].epoch
    epoch = make(state, BeginHandover(name, number, epoch, target))
    make(state, EndHandover(name, number, epoch))


def replicas_of(table: Table) -> "Counter[NodeId]":
    return Counter(each for partition in table.partitions for each in partition.replicas)


def masters_of(table: Table) -> "Counter[NodeId]":
    return Counter(each.preferred for each in table.partitions if each.preferred)


def difference(counted: "Counter[NodeId]", topology: Topology) -> int:
    """Between the nodes that may have something, of which one has most and one least."""
    counts = [
        counted[each.id] for each in topology.nodes.values() if each.is_up and not each.is_draining
    ]
    return max(counts) - min(counts)


def domains_of(topology: Topology, nodes: tuple[NodeId, ...]) -> int:
    return len({topology.nodes[each].failure_domain for each in nodes})


def least_moves(topology: Topology, able: list[NodeId]) -> int:
    """Whatever the plan: what is above an even share leaves, and what is elsewhere does."""
    least = 0
    for table in topology.tables.values():
        counted = replicas_of(table)
        share, extras = divmod(sum(counted.values()), len(able))
        above = sorted((counted[each] - share for each in able), reverse=True)
        elsewhere = sum(count for each, count in counted.items() if each not in able)
        least += elsewhere + sum(
            max(0, more - (place < extras)) for place, more in enumerate(above)
        )
    return least


def disordered(state: TopologyState, seed: int) -> TopologyState:
    """Replicas and masters anywhere, as long as no node has two of a partition."""
    chance = random.Random(seed)
    for name, table in state.topology.tables.items():
        for number in range(len(table.partitions)):
            if chance.random() < 0.5:
                before = state.topology.tables[name].partitions[number]
                others = [each for each in state.topology.nodes if each not in before.replicas]
                if others and chance.random() < 0.7:
                    source, target = chance.choice(before.replicas), chance.choice(others)
                    make(state, Migrate(name, number, source, target))
                else:
                    make(state, SetMaster(name, number, chance.choice(before.replicas)))
                _carry_out(state, name, number)
    return state
