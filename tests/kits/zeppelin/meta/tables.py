"""Nodes, tables and states that tests of the meta server begin with."""

from typing import Any

from raftwood.base.errors import RaftwoodError
from raftwood.zeppelin.meta.changes import Change, CreateTable, RegisterNode
from raftwood.zeppelin.meta.topology_state import TopologyState
from raftwood.zeppelin.model import NodeAddresses, NodeId, Partition, TableConfig

A, B, C, D, E = (NodeId(each) for each in "abcde")


def registered(node: NodeId, *, run: int = 1, domain: str = "") -> RegisterNode:
    addresses = NodeAddresses(data=f"{node}:1", replication=f"{node}:2", admin=f"{node}:3")
    return RegisterNode(node, addresses, domain or f"rack-{node}", run)


def state_with(*nodes: NodeId, **config: int) -> TopologyState:
    """A table `t` on these nodes; of one partition, if nothing else is said."""
    state = TopologyState()
    make(state, *(registered(node) for node in nodes))
    chosen: dict[str, Any] = {"partitions": 1, "replicas": len(nodes)} | config
    make(state, CreateTable("t", TableConfig(**chosen)))
    return state


def make(state: TopologyState, *changes: Change) -> int:
    """Make changes, all of which have to succeed."""
    applied = state.apply(changes)
    refused = [each for each in applied.results if each is not None]
    if refused:
        raise refused[0].error()
    return applied.epoch


def refusal(state: TopologyState, change: Change) -> RaftwoodError:
    """Why a change is refused; it may not change anything."""
    before = state.topology
    (refused,) = state.apply((change,)).results
    assert refused is not None
    assert state.topology is before
    return refused.error()


def partition(state: TopologyState, number: int = 0) -> Partition:
    return state.topology.tables["t"].partitions[number]
