"""How a table doubles: what the rules allow, and how a leader sees it through."""

import pytest

from raftwood.base.errors import Conflict, InvalidInput, NotFound, Overloaded
from raftwood.zeppelin.meta import topology_state
from raftwood.zeppelin.meta.changes import (
    BeginHandover,
    BeginSplit,
    CancelSplit,
    ChangeMaster,
    CreateTable,
    DoublePartitions,
    DropTable,
    EndSplit,
    Migrate,
    NodeDown,
)
from raftwood.zeppelin.meta.deltas import applied
from raftwood.zeppelin.meta.heartbeats import LeaderTerm
from raftwood.zeppelin.meta.partition_rules import unsplit
from raftwood.zeppelin.meta.topology_state import TopologyState
from raftwood.zeppelin.model import NodeId, Parent, PartitionState, TableConfig, Topology
from tests.kits.zeppelin.meta.leader import SETTINGS, Leader
from tests.kits.zeppelin.meta.tables import (
    A,
    B,
    C,
    D,
    make,
    partition,
    refusal,
    registered,
    state_with,
)


def begun(number: int = 0, **config: int) -> TopologyState:
    """A table that doubles, with one partition that is about to be split."""
    state = state_with(A, B, **config)
    make(state, DoublePartitions("t"))
    make(state, BeginSplit("t", number, partition(state, number).epoch))
    return state


def test_a_partition_goes_on_as_two_with_the_same_replicas() -> None:
    state = begun(partitions=2)
    assert partition(state).state is PartitionState.STUCK
    assert partition(state).is_splitting
    epoch = make(state, EndSplit("t", 0, partition(state).epoch, 9, 7))
    table = state.topology.tables["t"]
    assert table.places == (0, 2, 1, 1)
    assert [each.replicas for each in table.partitions] == [(A, B), (B, A), (A, B)]
    assert table.partitions[2].parent == Parent(number=0, epoch=9, sequence=7)
    for each in (table.partitions[0], table.partitions[2]):
        assert each.epoch == epoch
        assert each.state is PartitionState.ACTIVE
        assert not each.is_splitting
    assert table.is_doubling
    assert unsplit(table.partitions, 4) == {1}
    make(state, BeginSplit("t", 1, partition(state, 1).epoch))
    make(state, EndSplit("t", 1, partition(state, 1).epoch, 9, 8))
    assert not state.topology.tables["t"].is_doubling
    make(state, DoublePartitions("t"))
    assert state.topology.tables["t"].places == (0, 0, 2, 2, 1, 1, 3, 3)


def test_whoever_follows_by_deltas_has_the_same_places() -> None:
    state = state_with(A, B, partitions=2)
    seen, known = [], state.topology
    for change in (DoublePartitions("t"), BeginSplit("t", 1, partition(state, 1).epoch)):
        seen.append(state.topology)
        make(state, change)
        known = applied(known, state.delta(known.epoch))
        assert known == state.topology
    seen.append(state.topology)
    make(state, EndSplit("t", 1, partition(state, 1).epoch, 9, 7))
    for each in (Topology(), *seen):
        followed = applied(each, state.delta(each.epoch))
        assert followed == state.topology
        assert followed.tables["t"].places == (0, 0, 1, 2)


def test_it_is_given_up_when_the_master_goes() -> None:
    state = begun()
    make(state, NodeDown(A, 1))
    epoch = partition(state).epoch
    make(state, ChangeMaster("t", 0, epoch, B))
    assert not partition(state).is_splitting
    assert partition(state).state is PartitionState.ACTIVE
    assert isinstance(refusal(state, EndSplit("t", 0, epoch, 9, 7)), Conflict)
    assert isinstance(refusal(state, EndSplit("t", 0, partition(state).epoch, 9, 7)), Conflict)
    state = begun()
    make(state, registered(A, run=2))
    assert not partition(state).is_splitting
    state = begun()
    make(state, CancelSplit("t", 0, partition(state).epoch))
    assert partition(state).state is PartitionState.ACTIVE
    make(state, BeginSplit("t", 0, partition(state).epoch))


def test_what_does_not_go_together_is_refused() -> None:
    state = state_with(A, B)
    make(state, registered(D))
    assert isinstance(refusal(state, DoublePartitions("other")), NotFound)
    assert isinstance(refusal(state, BeginSplit("t", 0, partition(state).epoch)), Conflict)
    make(state, BeginHandover("t", 0, partition(state).epoch, B))
    assert isinstance(refusal(state, DoublePartitions("t")), Conflict)
    state = state_with(A, B)
    make(state, registered(D))
    make(state, Migrate("t", 0, A, D))
    assert isinstance(refusal(state, DoublePartitions("t")), Conflict)
    state = begun()
    make(state, registered(D))
    epoch = partition(state).epoch
    for change in (
        DoublePartitions("t"),
        DropTable("t"),
        Migrate("t", 0, A, D),
        BeginHandover("t", 0, epoch, B),
        BeginSplit("t", 0, epoch),
    ):
        assert isinstance(refusal(state, change), Conflict)
    make(state, EndSplit("t", 0, epoch, 9, 7))
    for number in (0, 1):
        change = BeginSplit("t", number, partition(state, number).epoch)
        assert isinstance(refusal(state, change), Conflict), "there is nothing to split"
    make(state, Migrate("t", 1, A, D))


def test_there_are_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_with(A, partitions=4096)
    assert isinstance(refusal(state, DoublePartitions("t")), InvalidInput)
    monkeypatch.setattr(topology_state, "PARTITIONS_MAX", 9)
    state = state_with(A, partitions=5)
    assert isinstance(refusal(state, DoublePartitions("t")), Overloaded)
    state = state_with(A, partitions=4)
    make(state, DoublePartitions("t"))
    config = TableConfig(partitions=2, replicas=1)
    assert isinstance(refusal(state, CreateTable("other", config)), Overloaded)


class Doubling(Leader):
    """A leader of a table that doubles."""

    def __init__(self, *nodes: NodeId, **config: int) -> None:
        super().__init__(state_with(*nodes, **config))
        self.nodes = [*nodes]
        for number in range(config.get("partitions", 1), 2 * config.get("partitions", 1)):
            for node in nodes:
                self.tell(node, number=number)
        self.wait(1_000)
        make(self.state, DoublePartitions("t"))

    def wait(self, duration_ms: int = 500) -> None:
        self.pass_time(duration_ms, *self.nodes)

    def kinds(self) -> list[type]:
        return [type(each) for each in self.carry_out() if type(each).__name__ != "MarkSlaves"]

    def lead_anew(self) -> None:
        self.reign = LeaderTerm(self.reign.term + 1, self.now_ms)
        self.reign.note(self.state.topology, self.now_ms)
        self.answered.clear()


def test_a_leader_splits_a_partition_once_its_slaves_are_where_the_frozen_master_is() -> None:
    leader = Doubling(A, B, C)
    leader.wait()
    assert leader.kinds() == [BeginSplit]
    leader.tell(A, 12)
    leader.wait()
    assert leader.kinds() == [], "the slaves are not there yet"
    leader.tell(B, 12)
    leader.tell(C, 12)
    leader.wait()
    assert leader.kinds() == [EndSplit]
    child = leader.state.topology.tables["t"].partitions[1]
    assert child.parent is not None
    assert child.parent.sequence == 12
    leader.wait(5_000)
    assert leader.kinds() == []


def test_a_slave_that_is_down_is_not_waited_for_and_one_that_hangs_not_for_long() -> None:
    leader = Doubling(A, B, C)
    leader.wait()
    assert leader.kinds() == [BeginSplit]
    leader.tell(A, 12)
    leader.tell(B, 12)
    leader.nodes.remove(C)
    leader.wait(1_500)
    assert leader.kinds() == [CancelSplit]
    leader.wait(29_000)
    assert BeginSplit not in leader.kinds()
    leader.wait(3_000)
    assert leader.kinds() == [BeginSplit]
    leader.wait()
    assert leader.kinds() == [EndSplit]


def test_no_partition_is_split_while_too_few_replicas_are_well_to_ack_its_writes() -> None:
    leader = Doubling(A, B, C, min_replicas=2)
    leader.nodes = [A]
    for _ in range(3):
        leader.wait(4_000)
        assert BeginSplit not in leader.kinds()
    leader.nodes = [A, B]
    made: list[type] = []
    for _ in range(4):
        leader.wait(1_000)
        made += leader.kinds()
    assert made.count(EndSplit) == 1


def test_what_a_master_told_before_the_freeze_does_not_count() -> None:
    leader = Doubling(A, B)
    leader.wait()
    assert leader.kinds() == [BeginSplit]
    assert leader.plan() == ()


def test_whoever_leads_next_goes_on_at_each_step_of_a_split() -> None:
    leader = Doubling(A, B, partitions=3)
    made: list[type] = []
    for _ in range(8):
        leader.lead_anew()
        assert leader.plan() == (), "nobody has told anything yet"
        leader.wait(1_000)
        made += leader.kinds()
    assert made.count(EndSplit) == 3
    assert set(made) <= {BeginSplit, EndSplit, CancelSplit}
    assert not leader.state.topology.tables["t"].is_doubling


def test_a_node_splits_one_partition_at_a_time() -> None:
    leader = Doubling(A, B, C, D, partitions=8, replicas=2)
    made = []
    while leader.state.topology.tables["t"].is_doubling:
        leader.wait()
        kinds = leader.kinds()
        made += kinds
        frozen = [
            each for each in leader.state.topology.tables["t"].partitions if each.is_splitting
        ]
        nodes = [node for each in frozen for node in each.replicas]
        assert len(nodes) == len(set(nodes))
        assert len(frozen) <= SETTINGS.handovers_max
    assert made.count(BeginSplit) == made.count(EndSplit) == 8
