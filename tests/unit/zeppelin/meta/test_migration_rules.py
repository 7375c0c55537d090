"""What becomes of migrations, change by change."""

import pytest

from raftwood.base.errors import AlreadyExists, Conflict, NotFound
from raftwood.zeppelin.meta.changes import (
    AddSlave,
    AddTarget,
    AtEpoch,
    BeginHandover,
    CancelHandover,
    CancelMigration,
    DropTable,
    EndHandover,
    EndMigration,
    Migrate,
    NodeDown,
    RemoveNode,
    RemoveSlave,
    SetDraining,
    SetMaster,
    SlowDown,
)
from raftwood.zeppelin.meta.topology_state import TopologyState
from raftwood.zeppelin.model import Migration, PartitionState
from tests.kits.zeppelin.meta.tables import (
    A,
    B,
    C,
    D,
    E,
    make,
    partition,
    refusal,
    registered,
    state_with,
)


def with_spare(**config: int) -> TopologyState:
    """A partition on a (its master) and b; d has nothing."""
    state = state_with(A, B, **config)
    make(state, registered(D))
    return state


def test_a_master_moves_by_a_handover_and_the_source_leaves_last() -> None:
    state = with_spare()
    plan = make(state, Migrate("t", 0, A, D))
    assert partition(state).migration == Migration(source=A, target=D, plan=plan)
    assert partition(state).preferred == D
    make(state, AddTarget("t", 0, partition(state).epoch))
    assert partition(state).slaves == (B, D)
    assert partition(state).lagging == (D,)
    assert isinstance(refusal(state, EndMigration("t", 0, partition(state).epoch)), Conflict)
    make(state, BeginHandover("t", 0, partition(state).epoch, D))
    assert isinstance(refusal(state, EndMigration("t", 0, partition(state).epoch)), Conflict)
    make(state, EndHandover("t", 0, partition(state).epoch))
    assert partition(state).replicas == (D, A, B)
    make(state, EndMigration("t", 0, partition(state).epoch))
    assert partition(state).replicas == (D, B)
    assert partition(state).migration is None


def test_a_slave_moves_without_a_handover() -> None:
    state = with_spare()
    make(state, Migrate("t", 0, B, D))
    make(state, AddTarget("t", 0, partition(state).epoch))
    make(state, EndMigration("t", 0, partition(state).epoch))
    assert (partition(state).replicas, partition(state).preferred) == ((A, D), A)


def test_what_is_cancelled_is_as_it_was() -> None:
    state = with_spare()
    for has_target in (False, True):
        make(state, Migrate("t", 0, A, D))
        if has_target:
            make(state, AddTarget("t", 0, partition(state).epoch))
            make(state, BeginHandover("t", 0, partition(state).epoch, D))
        make(state, CancelMigration("t", 0))
        assert (partition(state).replicas, partition(state).preferred) == ((A, B), A)
        assert partition(state).state is PartitionState.ACTIVE
        assert (partition(state).target, partition(state).migration) == (None, None)
    assert isinstance(refusal(state, CancelMigration("t", 0)), NotFound)


def test_a_target_that_is_master_is_not_cancelled() -> None:
    state = with_spare()
    make(state, Migrate("t", 0, A, D))
    make(state, AddTarget("t", 0, partition(state).epoch))
    make(state, BeginHandover("t", 0, partition(state).epoch, D))
    make(state, EndHandover("t", 0, partition(state).epoch))
    assert isinstance(refusal(state, CancelMigration("t", 0)), Conflict)


def test_replicas_of_one_partition_that_are_ordered_together_move_one_after_the_other() -> None:
    state = with_spare()
    make(state, registered(C))
    plan = make(state, Migrate("t", 0, A, D, 2), Migrate("t", 0, B, C, 2))
    second = Migration(source=B, target=C, plan=plan, of=2)
    assert partition(state).migrations_next == (second,)
    assert (partition(state).preferred, partition(state).migrations[-1]) == (D, second)
    make(state, NodeDown(C, 1))
    assert "moves to node 'c'" in refusal(state, RemoveNode(C)).message
    make(state, AddTarget("t", 0, partition(state).epoch))
    make(state, BeginHandover("t", 0, partition(state).epoch, D))
    make(state, EndHandover("t", 0, partition(state).epoch))
    make(state, EndMigration("t", 0, partition(state).epoch))
    assert partition(state).migrations == (second,)
    make(state, registered(C, run=2))
    make(state, AddTarget("t", 0, partition(state).epoch))
    make(state, EndMigration("t", 0, partition(state).epoch))
    assert (partition(state).replicas, partition(state).migrations) == ((D, C), ())


def test_what_was_to_move_later_is_cancelled_with_the_first_or_alone() -> None:
    state = with_spare()
    make(state, registered(C))
    make(state, Migrate("t", 0, B, D), Migrate("t", 0, A, C))
    make(state, CancelMigration("t", 0))
    assert (partition(state).migrations, partition(state).preferred) == ((), A)
    make(state, Migrate("t", 0, A, D), Migrate("t", 0, B, C))
    make(state, AddTarget("t", 0, partition(state).epoch))
    make(state, BeginHandover("t", 0, partition(state).epoch, D))
    make(state, EndHandover("t", 0, partition(state).epoch))
    make(state, CancelMigration("t", 0))
    assert [each.target for each in partition(state).migrations] == [D]
    assert partition(state).preferred == D


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (Migrate("t", 0, C, D), NotFound),
        (Migrate("t", 0, A, B), AlreadyExists),
        (Migrate("t", 0, A, C), NotFound),
        (Migrate("t", 1, A, D), NotFound),
    ],
)
def test_what_cannot_move_is_refused(change: Migrate, error: type[Exception]) -> None:
    assert isinstance(refusal(with_spare(), change), error)


def test_a_table_that_moves_is_left_alone() -> None:
    state = with_spare()
    make(state, Migrate("t", 0, A, D))
    for change in (
        Migrate("t", 0, B, D),
        DropTable("t"),
        RemoveSlave("t", 0, B),
        AddSlave("t", 0, D),
    ):
        assert isinstance(refusal(state, change), Conflict)
    make(state, SetMaster("t", 0, B))
    make(state, NodeDown(D, 1))
    assert isinstance(refusal(state, RemoveNode(D)), Conflict)


def test_a_node_that_is_to_be_emptied_gets_nothing() -> None:
    state = with_spare()
    make(state, SetDraining(D, True))
    assert isinstance(refusal(state, Migrate("t", 0, A, D)), Conflict)
    make(state, registered(D, run=2))
    assert state.topology.nodes[D].is_draining
    make(state, SetDraining(D, False))
    make(state, Migrate("t", 0, A, D))


def test_a_batch_that_was_planned_as_a_whole_is_made_as_a_whole() -> None:
    state = with_spare()
    epoch = state.topology.epoch
    before = state.topology
    for batch in (
        (AtEpoch(epoch - 1), Migrate("t", 0, A, D)),
        (AtEpoch(epoch), Migrate("t", 0, A, D), Migrate("t", 0, B, D)),
    ):
        applied = state.apply(batch)
        assert all(isinstance(each.error(), Conflict) for each in applied.results if each)
        assert None not in applied.results
        assert state.topology is before
        assert applied.epoch == epoch
    make(state, AtEpoch(epoch), Migrate("t", 0, A, D))


def test_writers_are_held_back_for_a_target_and_for_nobody_else() -> None:
    state = with_spare()
    assert isinstance(refusal(state, SlowDown("t", 0, partition(state).epoch)), Conflict)
    make(state, Migrate("t", 0, A, D))
    assert isinstance(refusal(state, SlowDown("t", 0, partition(state).epoch)), Conflict)
    make(state, AddTarget("t", 0, partition(state).epoch))
    make(state, SlowDown("t", 0, partition(state).epoch))
    assert (partition(state).state, partition(state).target) == (PartitionState.SLOWDOWN, D)
    epoch = partition(state).epoch
    assert isinstance(refusal(state, SlowDown("t", 0, epoch)), Conflict)
    assert isinstance(refusal(state, EndHandover("t", 0, epoch)), Conflict), "it is not frozen"
    assert isinstance(refusal(state, BeginHandover("t", 0, epoch, B)), Conflict)
    make(state, BeginHandover("t", 0, epoch, D))
    assert partition(state).state is PartitionState.STUCK


@pytest.mark.parametrize("end", [CancelHandover, CancelMigration, EndMigration])
def test_writers_are_let_go(end: type) -> None:
    state = with_spare()
    make(state, Migrate("t", 0, B, D))
    make(state, AddTarget("t", 0, partition(state).epoch))
    make(state, SlowDown("t", 0, partition(state).epoch))
    epoch = () if end is CancelMigration else (partition(state).epoch,)
    make(state, end("t", 0, *epoch))
    assert (partition(state).state, partition(state).target) == (PartitionState.ACTIVE, None)


def test_a_target_that_is_to_be_emptied_gets_nothing_of_what_was_ordered() -> None:
    state = state_with(A, B, C, partitions=3, replicas=2)
    make(state, registered(D), registered(E))
    firsts = [partition(state, number).replicas for number in range(3)]
    make(state, *(Migrate("t", number, firsts[number][0], D) for number in range(3)))
    for number in range(2):
        make(state, AddTarget("t", number, partition(state, number).epoch))
    make(state, BeginHandover("t", 1, partition(state, 1).epoch, D))
    make(state, EndHandover("t", 1, partition(state, 1).epoch))
    make(state, SetDraining(D, True))
    for number in (0, 2):
        assert partition(state, number).replicas == firsts[number]
        assert partition(state, number).migration is None
        assert partition(state, number).preferred == firsts[number][0]
    assert partition(state, 1).migration is not None, "it is master already"


def test_the_source_of_a_migration_is_not_to_be_master() -> None:
    state = with_spare()
    make(state, Migrate("t", 0, B, D))
    assert isinstance(refusal(state, SetMaster("t", 0, B)), Conflict)
