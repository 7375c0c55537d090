"""What each change does to the topology, and when it is refused."""

import pytest
from msgspec.structs import replace

from raftwood.base.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    InvalidName,
    NotFound,
    Unavailable,
)
from raftwood.zeppelin.meta.changes import (
    AddSlave,
    AddUser,
    BeginHandover,
    CancelHandover,
    Change,
    ChangeMaster,
    CreateTable,
    DropTable,
    EndHandover,
    ForceMaster,
    MarkSlaves,
    NodeDown,
    NodeUp,
    RemoveNode,
    RemoveSlave,
    RemoveUser,
    SetMaster,
    SetPassword,
    SetReads,
)
from raftwood.zeppelin.meta.deltas import applied
from raftwood.zeppelin.meta.topology_state import TopologyState
from raftwood.zeppelin.model import (
    EPOCH_NO_TABLE,
    EPOCH_NONE,
    NodeId,
    PartitionState,
    TableConfig,
    User,
)
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

SINGLE = TableConfig(partitions=1, replicas=1)


def test_epochs_begin_below_all_tables_and_go_up_by_one_with_each_batch() -> None:
    state = TopologyState()
    assert state.topology.epoch == EPOCH_NONE
    assert make(state, registered(A)) == EPOCH_NO_TABLE
    assert make(state, registered(B), registered(C)) == 1
    assert make(state, registered(B)) == 1, "what makes no difference is no change"
    assert make(state, CreateTable("t", SINGLE)) == 2
    assert state.topology.tables["t"].incarnation == 2
    assert partition(state).epoch == 2


def test_changes_of_one_batch_are_made_or_refused_by_themselves() -> None:
    state = state_with(A)
    epoch = state.topology.epoch
    applied = state.apply((DropTable("x"), registered(B), CreateTable("t", SINGLE)))
    assert applied.epoch == epoch + 1
    assert [each is None for each in applied.results] == [False, True, False]


def test_a_table_made_anew_is_another_one_and_has_no_user_of_the_old() -> None:
    state = state_with(A)
    old = state.topology.tables["t"]
    make(state, AddUser(User(name="u", table="t", password_hash="h")))
    make(state, DropTable("t"), CreateTable("t", SINGLE))
    new = state.topology.tables["t"]
    assert new.incarnation > old.incarnation
    assert new.partitions[0].epoch == new.incarnation
    assert not state.topology.users
    two = (CreateTable("x", SINGLE), CreateTable("y", SINGLE))
    assert [each is None for each in state.apply(two).results] == [True, False]


def test_a_user_with_another_password_is_the_same_else() -> None:
    state = state_with(A)
    reader = User(name="u", table="t", password_hash="h", may_write=False)
    make(state, AddUser(reader))
    before = state.topology.epoch
    make(state, SetPassword("u", "other"))
    assert state.topology.users["u"] == replace(reader, password_hash="other")
    assert state.topology.epoch > before
    assert isinstance(refusal(state, SetPassword("u", "")), InvalidInput)


def test_a_plan_is_refused_once_its_partition_has_changed_and_only_then() -> None:
    state = state_with(A, B, C, partitions=2)
    planned_on = partition(state, 0)
    other = partition(state, 1)
    assert other.master is not None
    make(state, MarkSlaves("t", 1, other.epoch, other.slaves))
    make(state, registered(D))
    assert planned_on.master is not None
    make(state, NodeDown(planned_on.master, 1))
    assert partition(state, 0) == planned_on, "no other change concerns it"
    change = ChangeMaster("t", 0, planned_on.epoch, planned_on.slaves[0])
    make(state, change)
    assert isinstance(refusal(state, change), Conflict)
    assert partition(state, 1).epoch < partition(state, 0).epoch


def test_a_failover_marks_the_old_master_and_never_takes_one_that_is_up() -> None:
    state = state_with(A, B, C)
    first = partition(state)
    assert first.master == A
    change = ChangeMaster("t", 0, first.epoch, B)
    assert "handed over" in refusal(state, change).message
    make(state, NodeDown(A, 1), change)
    after = partition(state)
    assert (after.master, sorted(after.slaves), after.lagging) == (B, [A, C], (A,))
    assert after.preferred == A
    make(state, NodeDown(C, 1), NodeDown(B, 1))
    assert "down" in refusal(state, ChangeMaster("t", 0, after.epoch, C)).message
    make(state, ChangeMaster("t", 0, after.epoch, None))
    nobody = partition(state)
    assert nobody.master is None
    assert sorted(nobody.slaves) == [A, B, C]
    assert nobody.lagging == (A,), "the last master has everything"


def test_a_node_that_starts_anew_is_master_of_nothing_until_it_is_chosen() -> None:
    state = state_with(A, B)
    before = partition(state)
    make(state, registered(A, run=2))
    after = partition(state)
    assert after.master is None
    assert after.slaves == (A, B)
    assert not after.lagging
    assert after.epoch > before.epoch
    make(state, ChangeMaster("t", 0, after.epoch, A))
    assert partition(state).master == A
    assert isinstance(refusal(state, NodeDown(A, 1)), Conflict), "judged before it started anew"


def test_a_master_that_was_chosen_and_restarted_before_is_none() -> None:
    state = state_with(A, B, C)
    make(state, NodeDown(A, 1))
    chosen = ChangeMaster("t", 0, partition(state).epoch, B, (), 1)
    make(state, registered(B, run=2))
    assert "started anew" in refusal(state, chosen).message
    make(state, ChangeMaster("t", 0, partition(state).epoch, B, (), 2))
    assert partition(state).master == B


def test_a_hand_over_freezes_hands_over_and_thaws() -> None:
    state = state_with(A, B)
    make(state, BeginHandover("t", 0, partition(state).epoch, B))
    stuck = partition(state)
    assert (stuck.state, stuck.target, stuck.master) == (PartitionState.STUCK, B, A)
    for change in (DropTable("t"), RemoveSlave("t", 0, B), AddSlave("t", 0, B)):
        assert "handed over" in refusal(state, change).message
    make(state, EndHandover("t", 0, stuck.epoch))
    after = partition(state)
    assert (after.state, after.target, after.master) == (PartitionState.ACTIVE, None, B)
    assert after.slaves == (A,)
    assert not after.lagging
    assert "no hand-over" in refusal(state, CancelHandover("t", 0, after.epoch)).message


def test_a_hand_over_ends_where_it_is_cancelled_or_its_target_starts_anew() -> None:
    state = state_with(A, B)
    make(state, BeginHandover("t", 0, partition(state).epoch, B))
    make(state, CancelHandover("t", 0, partition(state).epoch))
    assert (partition(state).state, partition(state).target) == (PartitionState.ACTIVE, None)
    make(state, BeginHandover("t", 0, partition(state).epoch, B))
    make(state, registered(B, run=2))
    assert (partition(state).state, partition(state).master) == (PartitionState.ACTIVE, A)
    make(state, NodeDown(B, 2))
    change = BeginHandover("t", 0, partition(state).epoch, B)
    assert "down" in refusal(state, change).message


def test_a_new_slave_has_to_catch_up_before_it_counts() -> None:
    state = state_with(A, B)
    make(state, registered(C))
    make(state, AddSlave("t", 0, C))
    assert (partition(state).slaves, partition(state).lagging) == ((B, C), (C,))
    make(state, MarkSlaves("t", 0, partition(state).epoch, ()))
    assert not partition(state).lagging
    make(state, SetMaster("t", 0, C))
    assert (partition(state).preferred, partition(state).master) == (C, A)
    make(state, RemoveSlave("t", 0, C))
    assert (partition(state).slaves, partition(state).preferred) == ((B,), A)


def test_a_partition_without_a_master_can_be_forced_and_no_other() -> None:
    state = state_with(A, B)
    change = ForceMaster("t", 0, B)
    assert "only a partition without" in refusal(state, change).message
    make(state, NodeDown(A, 1))
    make(state, ChangeMaster("t", 0, partition(state).epoch, None, (B,)))
    assert partition(state).lagging == (B,)
    make(state, change)
    assert (partition(state).master, partition(state).lagging) == (B, (A,))


def test_only_a_node_that_is_down_and_has_nothing_is_forgotten() -> None:
    state = state_with(A, B)
    assert "is up" in refusal(state, RemoveNode(A)).message
    make(state, NodeDown(A, 1))
    assert "has partition 0 of table 't'" in refusal(state, RemoveNode(A)).message
    make(state, DropTable("t"))
    make(state, RemoveNode(A))
    assert list(state.topology.nodes) == [B]
    make(state, NodeDown(B, 1))
    make(state, NodeUp(B, 1))
    assert state.topology.nodes[B].is_up


REFUSED: list[tuple[Change, type[Exception]]] = [
    (CreateTable("t", SINGLE), AlreadyExists),
    (CreateTable("no/name", SINGLE), InvalidName),
    (CreateTable("x", TableConfig(replicas=3)), Unavailable),
    (DropTable("x"), NotFound),
    (registered(NodeId("no name")), InvalidName),
    (registered(C, domain="\n"), InvalidInput),
    (RemoveNode(C), NotFound),
    (NodeDown(C, 1), NotFound),
    (AddUser(User(name="u", table="x", password_hash="h")), NotFound),
    (AddUser(User(name="u", table="t", password_hash="")), InvalidInput),
    (RemoveUser("u"), NotFound),
    (SetPassword("u", "h"), NotFound),
    (SetMaster("t", 0, C), NotFound),
    (SetMaster("t", 1, A), NotFound),
    (AddSlave("t", 0, C), NotFound),
    (AddSlave("t", 0, B), AlreadyExists),
    (RemoveSlave("t", 0, A), Conflict),
    (RemoveSlave("t", 0, B), Conflict),
    (RemoveSlave("t", 0, C), NotFound),
    (ForceMaster("t", 0, B), Conflict),
    (BeginHandover("t", 0, 0, B), Conflict),
    (MarkSlaves("t", -1, 0, ()), NotFound),
]


@pytest.mark.parametrize(("change", "error"), REFUSED)
def test_what_cannot_be_is_refused_and_changes_nothing(
    change: Change, error: type[Exception]
) -> None:
    state = state_with(A, B, min_replicas=2)
    assert isinstance(refusal(state, change), error)


def test_a_table_is_told_what_its_reads_are_and_everybody_hears_it() -> None:
    state = state_with(A, B, min_replicas=2)
    before = state.topology
    told = [before.tables["t"].has_durable_reads]
    for reads in ("latest", None):
        make(state, SetReads("t", reads))
        heard = applied(before, state.delta(before.epoch)).tables["t"]
        assert heard == state.topology.tables["t"]
        told.append(heard.has_durable_reads)
    assert told == [True, False, True]
    assert isinstance(refusal(state, SetReads("other", "latest")), NotFound)
