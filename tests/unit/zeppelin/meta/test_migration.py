"""How a leader sees migrations through: from their order to the end, whoever dies meanwhile."""

from typing import Any

import pytest

from raftwood.zeppelin.meta.changes import (
    AddTarget,
    BeginHandover,
    CancelHandover,
    CancelMigration,
    ChangeMaster,
    EndHandover,
    EndMigration,
    Migrate,
    NodeDown,
    NodeUp,
    RemoveTarget,
    SlowDown,
)
from raftwood.zeppelin.meta.heartbeats import LeaderTerm, MigrationQueue
from raftwood.zeppelin.model import Gap, Migration, NodeId, Partition, PartitionId, PartitionState
from tests.kits.zeppelin.meta.leader import SETTINGS, Leader
from tests.kits.zeppelin.meta.tables import A, B, C, D, E, make, partition, registered, state_with


class Moving(Leader):
    """Partitions with master a, on a and b, or more; d and what else is spare has none."""

    def __init__(self, *nodes: NodeId, spare: tuple[NodeId, ...] = (D,), **config: int) -> None:
        state = state_with(*nodes, **config)
        make(state, *(registered(node) for node in spare))
        super().__init__(state)
        self.nodes = [*nodes, *spare]
        self.wait(1_000)

    def wait(self, duration_ms: int = 500) -> None:
        """Everybody tells what it has, again and again."""
        self.pass_time(duration_ms, *self.nodes)

    def kinds(self) -> list[type]:
        """What is planned and made now, but for marks."""
        return [type(each) for each in self.carry_out() if type(each).__name__ != "MarkSlaves"]

    def lead_anew(self) -> None:
        """Another leader, who has heard nothing yet."""
        self.reign = LeaderTerm(self.reign.term + 1, self.now_ms)
        self.reign.note(self.state.topology, self.now_ms)
        self.answered.clear()

    def begin(self, source: NodeId, target: NodeId = D) -> None:
        make(self.state, Migrate("t", 0, source, target))
        self.wait()
        assert self.kinds() == [AddTarget]

    def catch_up(self, *nodes: NodeId, **more: Any) -> None:
        """They are where the master is, and the marks go."""
        for node in nodes:
            self.tell(node, **more)
        self.wait()
        self.carry_out()
        self.wait()


def test_a_master_moves_step_by_step() -> None:
    leader = Moving(A, B)
    leader.begin(A)
    leader.tell(D, 0, epoch=0, lag_bytes=1 << 30, is_candidate=False)
    leader.wait(60_000)
    assert leader.kinds() == []
    leader.catch_up(D)
    assert leader.kinds() == [BeginHandover]
    assert partition(leader.state).target == D
    leader.wait()
    assert leader.kinds() == [EndHandover]
    assert partition(leader.state).replicas == (D, A, B)
    leader.wait()
    assert leader.kinds() == [EndMigration]
    assert partition(leader.state).replicas == (D, B)
    leader.wait(60_000)
    assert leader.kinds() == []


def test_a_slave_moves_without_a_freeze() -> None:
    leader = Moving(A, B)
    leader.begin(B)
    leader.catch_up(D)
    assert leader.kinds() == [EndMigration]
    assert partition(leader.state).replicas == (A, D)


def test_a_single_replica_moves() -> None:
    leader = Moving(A)
    leader.begin(A)
    leader.catch_up(D)
    for step in (BeginHandover, EndHandover, EndMigration):
        assert leader.kinds() == [step]
        leader.wait()
    assert partition(leader.state).replicas == (D,)


@pytest.mark.parametrize("least", [1, 2])
def test_a_source_that_is_dead_is_replaced(least: int) -> None:
    leader = Moving(A, B, C, min_replicas=least)
    make(leader.state, NodeDown(C, 1), Migrate("t", 0, C, D))
    leader.nodes.remove(C)
    leader.wait()
    assert AddTarget in leader.kinds()
    leader.catch_up(D)
    assert EndMigration in leader.kinds()
    assert partition(leader.state).replicas == (A, B, D)


def test_whoever_leads_next_goes_on_at_each_step() -> None:
    leader = Moving(A, B)
    make(leader.state, Migrate("t", 0, A, D))
    leader.tell(D, is_candidate=True)
    made: list[type] = []
    for _ in range(12):
        leader.lead_anew()
        assert leader.plan() == (), "nobody has told anything yet"
        leader.wait(1_000)
        made += leader.kinds()
        leader.wait()
        made += leader.kinds()
    assert made == [AddTarget, BeginHandover, EndHandover, EndMigration]


def test_those_that_were_ordered_first_begin_first_and_few_at_a_time() -> None:
    leader = Moving(A, B, C, partitions=12, spare=(D, E), replicas=1)
    sources = [partition(leader.state, number).replicas[0] for number in range(12)]
    for number in reversed(range(12)):
        make(leader.state, Migrate("t", number, sources[number], (D, E)[number % 2]))
    leader.wait()
    begun = [each for each in leader.carry_out() if isinstance(each, AddTarget)]
    most = SETTINGS.migrations_per_node_max
    assert [each.partition for each in begun] == [11, 10, 9, 8]
    assert len(begun) == 2 * most, "as many as the two targets may have"
    assert leader.kinds() == []
    leader.nodes.remove(D)
    leader.wait(SETTINGS.down_ms + 500)
    assert AddTarget not in leader.kinds(), "those that wait for d do not begin"
    leader.nodes.append(D)
    leader.wait(1_000)
    done = begun[0].partition
    leader.tell(sources[done], number=done)
    make(leader.state, CancelMigration("t", done))
    leader.wait()
    assert [each.partition for each in leader.carry_out() if isinstance(each, AddTarget)] == [7]


def test_a_node_that_stays_away_holds_up_no_others() -> None:
    leader = Moving(A, B, partitions=8, spare=(C, D), replicas=1)
    far = [each for each in range(8) if partition(leader.state, each).master == A]
    for number in far[:2]:
        make(leader.state, Migrate("t", number, A, C))
    make(leader.state, Migrate("t", far[2], A, D))
    leader.wait()
    assert leader.kinds() == [AddTarget, AddTarget], "a sends to two at a time"
    leader.nodes.remove(C)
    leader.wait(SETTINGS.down_ms + 500)
    assert AddTarget in leader.kinds()


def frozen() -> Moving:
    leader = Moving(A, B)
    leader.begin(A)
    leader.catch_up(D)
    assert leader.kinds() == [BeginHandover]
    return leader


def test_offsets_from_before_the_freeze_end_no_handover() -> None:
    leader = frozen()
    leader.now_ms += 100
    leader.beat(A, B, D, applied=leader.state.topology.epoch - 1)
    assert leader.kinds() == []
    leader.beat(A, B, D)
    assert leader.kinds() == [EndHandover]


@pytest.mark.parametrize("silent", [A, D])
def test_writes_wait_no_longer_than_the_bound_whoever_is_silent(silent: NodeId) -> None:
    leader = frozen()
    leader.tell(D, 99)
    leader.nodes.remove(silent)
    leader.wait(SETTINGS.handover_stuck_ms)
    assert CancelHandover in leader.kinds()
    assert partition(leader.state).state is PartitionState.ACTIVE
    leader.nodes.append(silent)
    assert leader.kinds() == [], "it pauses"
    leader.catch_up(D)
    leader.wait()
    assert leader.kinds() == [BeginHandover]


def test_a_new_leader_ends_a_freeze_that_it_finds() -> None:
    leader = frozen()
    leader.tell(D, 99)
    leader.lead_anew()
    leader.now_ms += SETTINGS.handover_stuck_ms
    assert leader.kinds() == [CancelHandover], "though it has heard nobody"


def test_a_failover_only_changes_who_is_master() -> None:
    leader = Moving(A, B)
    leader.begin(A)
    leader.tell(D, 50, lag_bytes=1 << 30)
    leader.nodes.remove(A)
    leader.wait(SETTINGS.down_ms)
    assert leader.kinds() == [NodeDown, ChangeMaster]
    assert partition(leader.state).master == B
    leader.tell(D, 50, lag_bytes=1 << 30, contact_ms=None)
    leader.wait()
    assert leader.kinds() == []
    leader.catch_up(D)
    assert leader.kinds() == [EndMigration]
    assert partition(leader.state).replicas == (B, D)


def test_the_source_stays_until_the_others_follow_the_new_master() -> None:
    leader = frozen()
    leader.wait()
    leader.tell(B, contact_ms=None)
    assert leader.kinds() == [EndHandover]
    leader.wait()
    assert leader.kinds() == []
    leader.tell(B)
    leader.wait()
    assert leader.kinds() == [EndMigration]


def test_what_the_target_told_of_another_master_lets_no_source_go() -> None:
    leader = Moving(A, B)
    leader.begin(B)
    leader.tell(D)
    before = leader.state.topology.epoch - 1
    leader.now_ms += 100
    leader.beat(A, B)
    leader.beat(D, applied=before)
    assert EndMigration not in leader.kinds()


def test_a_target_that_stays_away_is_no_replica_meanwhile() -> None:
    leader = Moving(A, B, C, min_replicas=2)
    leader.begin(C)
    leader.tell(D, 50, lag_bytes=1 << 30)
    leader.wait()
    leader.nodes.remove(D)
    leader.wait(SETTINGS.target_gone_ms - 1_000)
    assert leader.kinds() == [NodeDown]
    leader.wait(1_000)
    assert leader.kinds() == [RemoveTarget]
    assert partition(leader.state).replicas == (A, B, C)
    leader.wait()
    assert leader.kinds() == []
    leader.nodes.append(D)
    leader.wait()
    assert leader.kinds() == [NodeUp, AddTarget]


def left_behind() -> Moving:
    """The target streams, and is no closer than it was."""
    leader = Moving(A, B)
    leader.begin(A)
    leader.tell(D, 90, lag_bytes=8 << 20, is_streaming=True)
    leader.wait()
    assert leader.kinds() == [], "marked as lagging no more"
    for _ in range(100):
        leader.wait()
        if leader.kinds() == [SlowDown]:
            return leader
    pytest.fail("writers were never held back")


def test_writers_are_held_back_for_a_target_that_comes_no_closer() -> None:
    leader = left_behind()
    assert partition(leader.state).state is PartitionState.SLOWDOWN
    leader.wait()
    assert leader.kinds() == []
    leader.tell(D)
    leader.wait()
    assert leader.kinds() == [BeginHandover]
    assert partition(leader.state).state is PartitionState.STUCK


def test_a_target_is_close_by_what_the_link_does_not_hold() -> None:
    """8 MiB are under way at any time where 30 MiB/s go over a link of 250 ms."""
    leader = Moving(A, B)
    leader.begin(A)
    gap = Gap(queued_bytes=0, drain_ms=SETTINGS.handover_stuck_ms // 2)
    leader.tell(D, 90, lag_bytes=8 << 20, is_streaming=True, gap=gap)
    leader.wait()
    assert leader.kinds() == [], "marked as lagging no more"
    leader.wait()
    assert leader.kinds() == [BeginHandover]


def test_writers_are_held_back_for_a_target_whose_freeze_would_take_too_long() -> None:
    """There is little left, and the link is slow."""
    leader = Moving(A, B)
    leader.begin(A)
    gap = Gap(queued_bytes=1, drain_ms=SETTINGS.handover_stuck_ms // 2 + 1)
    leader.tell(D, 90, lag_bytes=1_000, is_streaming=True, gap=gap)
    for _ in range(100):
        leader.wait()
        if kinds := leader.kinds():
            assert kinds == [SlowDown]
            return
    pytest.fail("writers were never held back")


@pytest.mark.parametrize(
    "more",
    [
        {"is_streaming": False},
        {"is_candidate": False, "copied_bytes": 1, "copy_bytes": 100},
        {"contact_ms": 60_000},
        {"lag_bytes": 1 << 20},
    ],
)
def test_nobody_is_held_back_for_a_copy_or_for_one_who_is_away(more: dict[str, Any]) -> None:
    leader = Moving(A, B)
    leader.begin(B)
    fields = {"lag_bytes": 8 << 20, "is_streaming": True} | more
    leader.tell(D, 90, **fields)
    for _ in range(100):
        leader.wait()
        assert SlowDown not in leader.kinds()


def test_nobody_is_held_back_for_one_who_comes_closer() -> None:
    leader = Moving(A, B)
    leader.begin(A)
    for lag_mb in range(100, 1, -1):
        leader.tell(D, 90, lag_bytes=(lag_mb << 20) + (lag_mb % 3 << 20), is_streaming=True)
        leader.wait()
        assert SlowDown not in leader.kinds()


def test_writers_are_let_go_after_a_while_and_left_alone_as_long() -> None:
    leader = left_behind()
    leader.wait(SETTINGS.slowdown_ms_max)
    assert leader.kinds() == [CancelHandover]
    for _ in range(SETTINGS.slowdown_ms_max // 500):
        leader.wait()
        assert leader.kinds() == []


@pytest.mark.parametrize("how", ["down", "copied anew", "master leaves", "new leader"])
def test_writers_are_let_go_where_it_is_in_vain(how: str) -> None:
    leader = left_behind()
    if how == "down":
        leader.nodes.remove(D)
        leader.wait(SETTINGS.down_ms)
    elif how == "copied anew":
        leader.tell(D, 0, is_candidate=False)
        leader.wait()
    elif how == "master leaves":
        leader.leaving.append(A)
        leader.wait()
    else:
        leader.lead_anew()
        leader.wait()
        assert leader.kinds() == [], "it counts anew"
        leader.wait(SETTINGS.slowdown_ms_max)
    assert CancelHandover in [*leader.kinds(), *leader.kinds()], "marks may come first"
    assert partition(leader.state).state is not PartitionState.SLOWDOWN


def test_a_slave_that_was_waited_for_moves_without_a_freeze() -> None:
    leader = Moving(A, B)
    leader.begin(B)
    leader.tell(D, 90, lag_bytes=8 << 20, is_streaming=True)
    for _ in range(40):
        leader.wait()
        leader.kinds()
    assert partition(leader.state).state is PartitionState.SLOWDOWN
    leader.catch_up(D)
    leader.wait()
    leader.kinds()
    assert partition(leader.state).replicas == (A, D)
    assert partition(leader.state).state is PartitionState.ACTIVE


def test_those_that_cannot_begin_hold_up_nobody_behind_them() -> None:
    queue = MigrationQueue()
    for number in range(2_500):
        moved = Migration(source=A, target=D, plan=5 + (number == 7))
        queue.note(PartitionId(1, number), "t", Partition(epoch=5, master=A, migration=moved))
    looks = [queue.look() for _ in range(4)]
    assert [len(each) for each in looks] == [1_000, 1_000, 500, 1_000]
    assert looks[2][-1] == ("t", 7), "it was ordered last"
    assert looks[3] == looks[0], "and round again"
    begun = Partition(
        epoch=6, master=A, slaves=(D,), migration=Migration(source=A, target=D, plan=5)
    )
    queue.note(PartitionId(1, 0), "t", begun)
    assert queue.look()[0] == ("t", 1)
