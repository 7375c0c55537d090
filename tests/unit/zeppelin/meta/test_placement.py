"""Replicas on distinct nodes and failure domains, masters evenly: for many shapes of clusters."""

from collections import Counter

import pytest

from raftwood.base.errors import Unavailable
from raftwood.zeppelin.meta.changes import ChangeMaster, CreateTable, NodeDown
from raftwood.zeppelin.meta.topology_state import TopologyState
from raftwood.zeppelin.model import NodeId, Partition, TableConfig
from tests.kits.zeppelin.meta.tables import make, refusal, registered


def cluster(nodes: int, domains: int) -> TopologyState:
    state = TopologyState()
    for each in range(nodes):
        make(state, registered(NodeId(f"n{each}"), domain=f"d{each % domains}"))
    return state


def spread(counted: "Counter[NodeId]", state: TopologyState) -> int:
    counts = [counted[node] for node in state.topology.nodes]
    return max(counts) - min(counts)


def partitions(state: TopologyState, table: str) -> tuple[Partition, ...]:
    return state.topology.tables[table].partitions


SHAPES = [(n, r) for n in (1, 2, 3, 4, 5, 7, 12) for r in (1, 2, 3) if r <= n]


@pytest.mark.parametrize(("nodes", "replicas"), SHAPES)
@pytest.mark.parametrize("count", [1, 16, 64])
def test_masters_and_replicas_are_even_and_in_distinct_domains(
    nodes: int, replicas: int, count: int
) -> None:
    state = cluster(nodes, nodes)
    for name in ("one", "two"):
        make(state, CreateTable(name, TableConfig(partitions=count, replicas=replicas)))
        placed = partitions(state, name)
        assert all(len(set(each.replicas)) == replicas for each in placed)
        assert all(each.preferred == each.master for each in placed)
        masters = Counter(each.master for each in placed if each.master)
        assert spread(masters, state) <= 1
        assert spread(Counter(n for each in placed for n in each.replicas), state) <= 2


@pytest.mark.parametrize(("nodes", "domains"), [(6, 3), (9, 3), (4, 2), (5, 2), (8, 4)])
def test_replicas_are_in_as_many_domains_as_there_are(nodes: int, domains: int) -> None:
    state = cluster(nodes, domains)
    make(state, CreateTable("t", TableConfig(partitions=32, replicas=3)))
    for each in partitions(state, "t"):
        found = {state.topology.nodes[node].failure_domain for node in each.replicas}
        assert len(found) == min(3, domains)


def test_so_many_partitions_that_stores_would_stand_still_are_refused() -> None:
    names = [NodeId(f"n{number}") for number in range(100)]
    state = TopologyState()
    make(state, *(registered(name) for name in names))
    refused = refusal(state, CreateTable("t", TableConfig(partitions=4_000)))
    assert "give 2621 at the most" in refused.message


def test_a_table_that_comes_after_a_new_node_is_on_all_of_them() -> None:
    state = cluster(3, 3)
    make(state, CreateTable("old", TableConfig(partitions=60)))
    make(state, registered(NodeId("n3"), domain="d3"))
    make(state, CreateTable("new", TableConfig(partitions=16)))
    masters = Counter(each.master for each in partitions(state, "new") if each.master)
    assert set(masters.values()) == {4}


def test_the_masters_of_a_node_that_fails_have_slaves_all_over() -> None:
    state = cluster(6, 6)
    make(state, CreateTable("t", TableConfig(partitions=60, replicas=3)))
    gone = NodeId("n2")
    lost = [(n, each) for n, each in enumerate(partitions(state, "t")) if each.master == gone]
    make(state, NodeDown(gone, 1))
    load = Counter(each.master for each in partitions(state, "t") if each.master)
    for number, each in lost:
        best = min(each.slaves, key=lambda node: load[node])
        load[best] += 1
        make(state, ChangeMaster("t", number, each.epoch, best))
    masters = Counter(each.master for each in partitions(state, "t") if each.master)
    assert masters[gone] == 0
    assert max(masters.values()) - min(masters.values()) <= 1


def test_nodes_that_are_down_get_nothing() -> None:
    state = cluster(3, 3)
    make(state, NodeDown(NodeId("n0"), 1))
    refused = refusal(state, CreateTable("t", TableConfig()))
    assert isinstance(refused, Unavailable)
    assert "2 are up" in refused.message
    make(state, CreateTable("t", TableConfig(replicas=2)))
    assert all(NodeId("n0") not in each.replicas for each in partitions(state, "t"))
