"""What a plan may be made on: nothing that moves, and nodes that are known."""

from collections.abc import Collection, Sequence

import msgspec

from raftwood.base.errors import Conflict, NotFound, Unavailable
from raftwood.zeppelin.meta.changes import CancelMigration, Change
from raftwood.zeppelin.meta.rules import MetaState
from raftwood.zeppelin.model import NodeId, Table, Topology


def settled(topology: Topology) -> tuple[Topology, list[Change]]:
    """A topology in which nothing waits to be moved, and the changes that lead there: what only
    waits for its turn is planned anew. `Conflict` if something is under way.
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
    state = MetaState(topology)
    state.apply(tuple(waiting))
    return msgspec.structs.replace(state.topology, epoch=topology.epoch), waiting


def check_nodes(topology: Topology, nodes: Collection[NodeId]) -> None:
    for node in nodes:
        if node not in topology.nodes:
            raise NotFound(f"there is no node {node!r}: see the status for those that there are")


def check_able(topology: Topology, nodes: Collection[NodeId]) -> None:
    """Whether nodes may get something."""
    check_nodes(topology, nodes)
    for node in nodes:
        if not topology.nodes[node].is_up:
            raise Unavailable(f"node {node!r} is down: start it first")
        if topology.nodes[node].is_draining:
            raise Conflict(f"node {node!r} is being emptied: end that first by drain --undo")


def tables_of(topology: Topology, name: str | None) -> Sequence[Table]:
    """One table, or all."""
    if name is None:
        return [table for _, table in sorted(topology.tables.items())]
    if name not in topology.tables:
        raise NotFound(f"there is no table {name!r}: check its name")
    return [topology.tables[name]]
