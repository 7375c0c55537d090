"""Plans for one partition, and for nodes that are forgotten: looked at before they are made."""

from collections.abc import Collection

from raftwood.base.errors import NotFound
from raftwood.zeppelin.meta.changes import (
    AddSlave,
    Change,
    DoublePartitions,
    Migrate,
    RemoveNode,
    RemoveSlave,
    SetMaster,
)
from raftwood.zeppelin.meta.plans.plan import MasterChange, Move, Plan
from raftwood.zeppelin.meta.plans.settling import check_able, check_nodes
from raftwood.zeppelin.meta.rules import MetaState
from raftwood.zeppelin.model import NodeId, Partition, Topology


def migrate(
    topology: Topology, *, table: str, partition: int, source: NodeId, target: NodeId
) -> Plan:
    """Move one replica."""
    found = _partition(topology, table, partition)
    check_able(topology, [target])
    move = Move(
        table=table,
        partition=partition,
        source=source,
        target=target,
        role="master" if found.master == source else "slave",
    )
    return _checked(topology, Migrate(table, partition, source, target), moves=(move,))


def add_slave(topology: Topology, *, table: str, partition: int, node: NodeId) -> Plan:
    """One replica more."""
    check_able(topology, [node])
    return _checked(topology, AddSlave(table, partition, node))


def remove_slave(topology: Topology, *, table: str, partition: int, node: NodeId) -> Plan:
    """One replica less."""
    return _checked(topology, RemoveSlave(table, partition, node))


def set_master(topology: Topology, *, table: str, partition: int, node: NodeId) -> Plan:
    """Another one of the replicas is to lead."""
    old = _partition(topology, table, partition).preferred
    change = MasterChange(table=table, partition=partition, source=old, target=node)
    return _checked(topology, SetMaster(table, partition, node), masters=(change,))


def double(topology: Topology, table: str) -> Plan:
    """Twice as many partitions; each is split where it is, and nothing moves."""
    return _checked(topology, DoublePartitions(table))


def remove_nodes(topology: Topology, nodes: Collection[NodeId]) -> Plan:
    """Forget nodes that are stopped and have nothing."""
    check_nodes(topology, nodes)
    return _checked(topology, *(RemoveNode(node) for node in sorted(nodes)))


def _checked(
    topology: Topology,
    *changes: Change,
    moves: tuple[Move, ...] = (),
    masters: tuple[MasterChange, ...] = (),
) -> Plan:
    """What the rules would refuse is refused at once."""
    for refused in MetaState(topology).apply(changes).results:
        if refused is not None:
            raise refused.error()
    return Plan(
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
