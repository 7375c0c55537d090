"""Plans for many partitions: even to within one, in distinct domains, and with the fewest moves."""

import random

import pytest

from raftwood.base.errors import Conflict, InvalidInput, NotFound, Unavailable
from raftwood.zeppelin.meta import plans
from raftwood.zeppelin.meta.changes import (
    AddTarget,
    ChangeMaster,
    CreateTable,
    Migrate,
    NodeDown,
    SetDraining,
    SetMaster,
)
from raftwood.zeppelin.meta.plans import CHANGES_PLANNED_MAX, ClusterPlan
from raftwood.zeppelin.meta.topology_state import TopologyState
from raftwood.zeppelin.model import NodeId, TableConfig
from tests.kits.zeppelin.meta.plans import (
    carry_out,
    cluster,
    difference,
    disordered,
    domains_of,
    grow,
    least_moves,
    masters_of,
    node,
    replicas_of,
)
from tests.kits.zeppelin.meta.tables import make, registered


def check_even(state: TopologyState) -> None:
    topology = state.topology
    for table in topology.tables.values():
        assert difference(replicas_of(table), topology) <= 1
        assert difference(masters_of(table), topology) <= 1
        assert all(each.preferred == each.master for each in table.partitions)
        assert all(each.migration is None for each in table.partitions)


def check_told(state: TopologyState, plan: ClusterPlan) -> None:
    """What a plan says of the nodes is what it has led to."""
    tables = state.topology.tables.values()
    for count in plan.nodes:
        has = sum(replicas_of(table)[count.node] for table in tables)
        leads = sum(masters_of(table)[count.node] for table in tables)
        assert (count.replicas_after, count.masters_after) == (has, leads)


def able(state: TopologyState) -> list[NodeId]:
    return [
        each.id for each in state.topology.nodes.values() if each.is_up and not each.is_draining
    ]


@pytest.mark.parametrize("seed", range(60))
def test_a_cluster_in_disorder_is_balanced_with_the_fewest_moves(seed: int) -> None:
    chance = random.Random(seed)
    nodes = chance.randint(1, 9)
    replicas = chance.randint(1, min(3, nodes))
    tables = [(chance.choice((1, 5, 16, 33)), replicas) for _ in range(chance.randint(1, 3))]
    state = disordered(cluster(nodes, 1, *tables), seed)
    plan = plans.balance(state.topology)
    if len(tables) == 1:
        assert len(plan.moves) == least_moves(state.topology, able(state))
    assert len(plan.moves) == plan.moves_min
    carry_out(state, plan)
    check_even(state)
    check_told(state, plan)
    again = plans.balance(state.topology)
    assert (again.changes, again.uneven) == ((), ())


@pytest.mark.parametrize("seed", range(60))
def test_replicas_are_in_distinct_domains_and_even_after_balance(seed: int) -> None:
    chance = random.Random(seed)
    domains = chance.randint(2, 4)
    nodes = domains * chance.randint(1, 3)
    replicas = chance.randint(1, min(4, nodes))
    state = disordered(cluster(nodes, domains, (chance.choice((3, 16, 40)), replicas)), seed)
    apart = sum(
        domains_of(state.topology, each.replicas) < min(replicas, domains)
        for each in state.topology.tables["t0"].partitions
    )
    plan = plans.balance(state.topology)
    # Replicas that have to leave a domain are not always those that a node has too many of.
    assert len(plan.moves) <= apart + least_moves(state.topology, able(state))
    carry_out(state, plan)
    for each in state.topology.tables["t0"].partitions:
        assert domains_of(state.topology, each.replicas) == min(replicas, domains)
    check_even(state)
    assert plans.balance(state.topology).changes == ()


@pytest.mark.parametrize("seed", range(40))
def test_domains_of_any_sizes_are_kept_apart_and_a_second_plan_has_nothing_to_do(seed: int) -> None:
    chance = random.Random(seed)
    domains = chance.randint(2, 5)
    nodes = domains * chance.randint(1, 3) + chance.randint(0, 2)
    replicas = chance.randint(1, min(4, nodes))
    state = disordered(cluster(nodes, domains, (chance.choice((3, 16, 40)), replicas)), seed)
    plan = plans.balance(state.topology)
    carry_out(state, plan)
    check_told(state, plan)
    for each in state.topology.tables["t0"].partitions:
        assert domains_of(state.topology, each.replicas) == min(replicas, domains)
    again = plans.balance(state.topology)
    assert again.changes == ()
    assert all("different numbers of nodes" in text for text in again.uneven)


@pytest.mark.parametrize(("few", "many"), [(3, 6), (3, 4), (4, 7), (5, 10)])
@pytest.mark.parametrize("partitions", [7, 16, 64])
@pytest.mark.parametrize("domains", [1, 3, 100])
def test_nodes_come_and_go_and_all_is_even_each_time(
    few: int, many: int, partitions: int, domains: int
) -> None:
    state = cluster(few, domains, (partitions, 3))
    carry_out(state, plans.balance(state.topology))
    grow(state, range(few, many), domains)
    new = [node(each) for each in range(few, many)]
    # Domains with different numbers of nodes cannot be even.
    are_even = [domains != 3 or count % 3 == 0 for count in (few, many)]
    out = plans.expand(state.topology)
    assert out == plans.expand(state.topology, new)
    assert {each.target for each in out.moves} == {*new}
    assert len(out.moves) == out.moves_min
    if all(are_even):
        assert out.moves_min == least_moves(state.topology, able(state))
    carry_out(state, out)
    check_told(state, out)
    if are_even[1]:
        check_even(state)
        assert plans.balance(state.topology).changes == ()

    back = plans.drain(state.topology, new)
    assert {each.source for each in back.moves} == {*new}
    assert len(back.moves) == back.moves_min
    carry_out(state, back)
    check_told(state, back)
    if are_even[0]:
        check_even(state)
    assert set(replicas_of(state.topology.tables["t0"])) == {node(each) for each in range(few)}
    assert all(
        domains_of(state.topology, each.replicas) == (1 if domains == 1 else 3)
        for each in state.topology.tables["t0"].partitions
    )
    assert plans.drain(state.topology, new).changes == ()


@pytest.mark.parametrize("seed", range(40))
def test_what_is_even_stays_even_when_nodes_leave(seed: int) -> None:
    chance = random.Random(seed)
    nodes, replicas = chance.randint(4, 12), chance.randint(1, 3)
    state = disordered(cluster(nodes, 1, (chance.choice((5, 16, 50)), replicas)), seed)
    carry_out(state, plans.balance(state.topology))
    leaving = chance.sample(sorted(state.topology.nodes), chance.randint(1, nodes - replicas))
    plan = plans.drain(state.topology, leaving)
    assert len(plan.moves) == plan.moves_min
    carry_out(state, plan)
    check_even(state)
    check_told(state, plan)


@pytest.mark.parametrize("seed", range(20))
def test_when_nodes_leave_nothing_else_moves(seed: int) -> None:
    state = disordered(cluster(7, 1, (40, 3)), seed)
    loads = replicas_of(state.topology.tables["t0"])
    plan = plans.drain(state.topology, [node(3)])
    assert {each.source for each in plan.moves} == {node(3)}
    assert len(plan.moves) == loads[node(3)]
    assert {each.source for each in plan.masters} == {node(3)}


def test_masters_change_hardly_more_than_they_must_when_nodes_come() -> None:
    state = cluster(3, 100, (24, 3))
    grow(state, range(3, 6), 100)
    plan = plans.expand(state.topology)
    assert [each.masters_after for each in plan.nodes] == [4] * 6
    # Twelve must; who is moved is chosen before it is known who leads.
    assert len(plan.masters) <= 13


def test_new_nodes_get_their_share_and_one_that_is_emptied_gets_nothing() -> None:
    state = cluster(5, 100, (20, 2))
    make(state, SetDraining(node(0), True))
    carry_out(state, plans.balance(state.topology))
    grow(state, range(5, 7), 100)
    plan = plans.expand(state.topology)
    assert {each.target for each in plan.moves} == {node(5), node(6)}


def test_many_small_tables_are_even_all_together() -> None:
    state = cluster(3, 100, *[(1, 2)] * 30)
    grow(state, range(3, 6), 100)
    plan = plans.balance(state.topology)
    # One more than is needed: tables are planned one by one.
    assert len(plan.moves) <= 31
    carry_out(state, plan)
    assert {each.replicas_after for each in plan.nodes} == {10}
    assert {each.masters_after for each in plan.nodes} == {5}
    check_told(state, plan)
    assert plans.balance(state.topology).changes == ()


def test_masters_are_evened_without_a_move() -> None:
    state = cluster(3, 3, (12, 3))
    make(state, *(SetMaster("t0", number, node(1)) for number in range(12)))
    make(state, NodeDown(node(0), 1))
    plan = plans.balance(state.topology)
    assert not plan.moves
    assert [each.masters_after for each in plan.nodes] == [0, 6, 6]
    make(state, registered(node(0)))
    plan = plans.balance(state.topology)
    assert (len(plan.moves), len(plan.masters), len(plan.changes)) == (0, 8, 8)
    assert [each.masters_after for each in plan.nodes] == [4, 4, 4]


def test_a_node_takes_anothers_place_though_that_is_dead() -> None:
    state = cluster(4, 100, (16, 3))
    before = state.topology.tables["t0"]
    has, leads = replicas_of(before)[node(1)], masters_of(before)[node(1)]
    grow(state, range(4, 5), 100)
    make(state, NodeDown(node(1), 1))
    for number, each in enumerate(before.partitions):
        if each.master == node(1):
            make(state, ChangeMaster("t0", number, each.epoch, each.slaves[0]))
    plan = plans.replace_node(state.topology, old=node(1), new=node(4))
    assert len(plan.moves) == plan.moves_min == has
    assert {(each.source, each.target, each.role) for each in plan.moves} == {
        (node(1), node(4), "slave")
    }
    carry_out(state, plan)
    after = state.topology.tables["t0"]
    assert (replicas_of(after)[node(4)], masters_of(after)[node(4)]) == (has, leads)
    check_told(state, plan)
    carry_out(state, plans.remove_nodes(state.topology, [node(1)]))
    assert node(1) not in state.topology.nodes


def test_what_a_new_node_has_already_goes_by_way_of_another() -> None:
    state = cluster(4, 1, (16, 2))
    plan = plans.replace_node(state.topology, old=node(0), new=node(1))
    carry_out(state, plan)
    loads = replicas_of(state.topology.tables["t0"])
    assert (loads[node(0)], loads[node(1)]) == (0, 16)


def test_domains_of_different_sizes_stay_uneven_and_it_is_said_why() -> None:
    state = TopologyState()
    for number, domain in enumerate("abbbcc"):
        make(state, registered(node(number), domain=domain))
    make(state, CreateTable("t0", TableConfig(partitions=24, replicas=3)))
    plan = plans.balance(state.topology)
    carry_out(state, plan)
    loads = replicas_of(state.topology.tables["t0"])
    assert [loads[node(number)] for number in range(6)] == [24, 8, 8, 8, 12, 12]
    assert difference(masters_of(state.topology.tables["t0"]), state.topology) <= 1
    (why,) = plans.balance(state.topology).uneven
    assert why.endswith(
        "24 replicas and node 'n001' 8: failure domains have different numbers of nodes"
    )


def test_nodes_that_are_down_or_emptied_get_nothing_and_those_that_are_down_keep_all() -> None:
    state = cluster(5, 100, (20, 3))
    make(state, NodeDown(node(0), 1), SetDraining(node(1), True))
    had = replicas_of(state.topology.tables["t0"])[node(0)]
    grow(state, range(5, 7), 100)
    plan = plans.balance(state.topology)
    assert {each.target for each in plan.moves}.isdisjoint({node(0), node(1)})
    carry_out(state, plan)
    loads = replicas_of(state.topology.tables["t0"])
    assert (loads[node(0)], loads[node(1)]) == (had, 0)
    assert difference(loads, state.topology) <= 1
    undone = plans.undo_drain(state.topology, [node(1)])
    carry_out(state, undone)
    assert replicas_of(state.topology.tables["t0"])[node(1)] == 0
    carry_out(state, plans.expand(state.topology, [node(1)]))
    assert difference(replicas_of(state.topology.tables["t0"]), state.topology) <= 1


def test_what_cannot_be_is_refused_with_the_reason() -> None:
    state = cluster(3, 3, (4, 3))
    topology = state.topology
    with pytest.raises(Unavailable, match="3 replicas, and 2 nodes could have them"):
        plans.drain(topology, [node(2)])
    with pytest.raises(NotFound, match="no node 'x'"):
        plans.drain(topology, [NodeId("x")])
    with pytest.raises(NotFound, match="no table 'x'"):
        plans.balance(topology, table="x")
    with pytest.raises(InvalidInput, match="less than half of its share"):
        plans.expand(topology)
    with pytest.raises(InvalidInput, match="no node is named"):
        plans.drain(topology, [])
    with pytest.raises(InvalidInput, match="cannot replace itself"):
        plans.replace_node(topology, old=node(1), new=node(1))
    with pytest.raises(Conflict, match="not being emptied"):
        plans.undo_drain(topology, [node(1)])
    grow(state, range(5, 6), 4)
    with pytest.raises(Unavailable, match="nodes of 2 would be left"):
        plans.drain(state.topology, [node(0)])
    with pytest.raises(Unavailable, match="would be left"):
        plans.replace_node(state.topology, old=node(0), new=node(5))
    carry_out(state, plans.drain(state.topology, [node(0)], fewer_domains=True))
    assert replicas_of(state.topology.tables["t0"])[node(5)] == 4
    make(state, NodeDown(node(1), 1))
    with pytest.raises(Unavailable, match="is down"):
        plans.expand(state.topology, [node(1)])
    with pytest.raises(Conflict, match="drain --undo"):
        plans.expand(state.topology, [node(0)])


def test_what_waits_is_planned_anew_and_what_moves_is_left_alone() -> None:
    state = cluster(3, 3, (6, 2))
    grow(state, range(3, 6), 6)
    for number, each in enumerate(state.topology.tables["t0"].partitions):
        make(state, Migrate("t0", number, each.replicas[0], node(5)))
    plan = plans.balance(state.topology)
    assert plan.epoch == state.topology.epoch
    assert len(plan.moves) == 6
    carry_out(state, plan)
    check_even(state)
    (first, *_) = state.topology.tables["t0"].partitions
    free = next(each for each in state.topology.nodes if each not in first.replicas)
    epoch = make(state, Migrate("t0", 0, first.replicas[0], free))
    make(state, AddTarget("t0", 0, epoch))
    with pytest.raises(Conflict, match="partition 0 of table 't0' moves from"):
        plans.balance(state.topology)


def test_more_moves_than_are_ordered_at_once_come_later() -> None:
    state = cluster(8, 100, *[(4096, 3)] * 2)
    grow(state, range(8, 16), 100)
    plan = plans.expand(state.topology)
    assert len(plan.changes) <= CHANGES_PLANNED_MAX
    assert len(plan.changes) + plan.changes_later >= plan.moves_min == 2 * 4096 * 3 // 2
    assert max(each.of for each in plan.changes if isinstance(each, Migrate)) == len(plan.moves)
