"""What a leader plans from what it heard: who is down, who becomes master, who is behind."""

from collections.abc import Mapping
from typing import Any

import pytest

from raftwood.zeppelin.meta import state_machine
from raftwood.zeppelin.meta.changes import (
    AddSlave,
    BeginHandover,
    CancelHandover,
    Change,
    ChangeMaster,
    EndHandover,
    MarkSlaves,
    NodeDown,
    NodeUp,
    RemoveSlave,
    SetMaster,
)
from raftwood.zeppelin.meta.heartbeats import (
    PAUSE_MS_FIRST,
    LeaderMoment,
    LeaderTerm,
    NodeHeartbeat,
    ReplicaOffset,
)
from raftwood.zeppelin.model import NodeId, PartitionId, PartitionState
from raftwood.zeppelin.settings import ZeppelinMetaSettings
from tests.kits.zeppelin.meta.leader import DOWN_MS, SETTINGS, Leader, led
from tests.kits.zeppelin.meta.tables import A, B, C, make, partition, registered, state_with


def chosen(leader: Leader, number: int = 0) -> NodeId | None:
    """Who becomes master once A is silent."""
    others = [node for node in leader.state.topology.nodes if node != A]
    leader.pass_time(DOWN_MS, *others)
    leader.carry_out()
    return partition(leader.state, number).master


def test_a_silent_node_is_down_after_a_while_and_not_before() -> None:
    leader = led(A, B)
    leader.pass_time(DOWN_MS - 500, B)
    assert leader.plan() == ()
    leader.pass_time(500, B)
    epoch = partition(leader.state).epoch
    assert leader.plan() == (NodeDown(A, 1), ChangeMaster("t", 0, epoch, B, (A,), 1))


def test_a_new_leader_judges_nobody_before_it_has_waited() -> None:
    leader = Leader(state_with(A, B))
    assert leader.plan() == ()
    leader.pass_time(DOWN_MS - 500, B)
    assert leader.plan() == ()
    leader.pass_time(500, B)
    assert NodeDown(A, 1) in leader.plan()


def test_the_most_advanced_replica_becomes_master() -> None:
    leader = led(A, B, C)
    leader.tell(B, 200)
    leader.tell(C, 201)
    assert chosen(leader) == C
    again = led(A, B, C)
    again.tell(B, 100, epoch=3)
    again.tell(C, 900, epoch=2)
    assert chosen(again) == B, "what an older master wrote and a newer one did not is no advance"


def test_offsets_are_those_of_the_partition_itself() -> None:
    leader = led(A, B, C, partitions=3)
    assert partition(leader.state, 0).master == A
    for number in range(3):
        leader.tell(B, 10 if number == 0 else 900, number=number)
        leader.tell(C, 20 if number == 0 else 800, number=number)
    assert chosen(leader) == C


def test_among_equals_the_one_with_the_fewest_masters_is_chosen() -> None:
    leader = led(A, B, C, partitions=6)
    lost = [n for n in range(6) if partition(leader.state, n).master == A]
    assert len(lost) == 2
    chosen(leader)
    masters = [partition(leader.state, number).master for number in range(6)]
    assert sorted(masters) == sorted([B, B, B, C, C, C])  # type: ignore[type-var]


@pytest.mark.parametrize(
    "told", [{"lag_bytes": 65 << 20}, {"is_candidate": False}, {"contact_ms": 20_000}]
)
def test_a_stale_replica_never_becomes_master_by_itself(told: Mapping[str, Any]) -> None:
    leader = led(A, B)
    leader.tell(B, 100, **told)
    leader.pass_time(5_000, A, B)
    assert chosen(leader) is None
    leader.pass_time(30_000, B)
    leader.carry_out()
    assert partition(leader.state).master is None
    # The old master comes back, as it is: it has everything.
    leader.pass_time(1_000, A, B)
    leader.carry_out()
    leader.pass_time(1_000, A, B)
    leader.carry_out()
    assert partition(leader.state).master == A


def test_what_a_leader_found_stale_stays_so_for_the_next_leader() -> None:
    leader = led(A, B)
    leader.tell(B, contact_ms=9_000)
    leader.pass_time(5_000, A, B)
    assert chosen(leader) is None
    assert partition(leader.state).lagging == (B,)
    later = Leader(leader.state)
    later.tell(B, contact_ms=None)
    later.pass_time(10_000, B)
    later.carry_out()
    assert partition(later.state).master is None


def test_nobody_is_chosen_before_all_that_are_up_have_told_how_far_they_are() -> None:
    leader = led(A, B, C)
    leader.tell(B, 50)
    leader.tell(C, 60)
    leader.pass_time(SETTINGS.lease_ms, B, C)
    leader.pass_time(DOWN_MS - SETTINGS.lease_ms, B)
    leader.beat(C)
    # Both had an answer after A's lease had ended, and told after that: else it has to wait.
    assert any(isinstance(each, ChangeMaster) for each in leader.plan())
    other = led(A, B, C)
    other.pass_time(1_500, B, C)
    other.pass_time(1_500, B)
    assert other.plan() == (NodeDown(A, 1),)
    other.carry_out()
    other.pass_time(500, B, C)
    assert other.plan() == (), "C told what it had seen when A could still write"
    other.pass_time(500, B, C)
    assert [type(each) for each in other.plan()] == [ChangeMaster]


def test_a_word_that_was_long_on_its_way_says_nothing_of_now() -> None:
    leader = led(A, B, C, min_replicas=2)
    incarnation = leader.state.topology.tables["t"].incarnation
    epoch = leader.state.topology.epoch
    leader.tell(B, 150)
    leader.tell(C, 200)
    leader.pass_time(1_000, A, B)
    old = NodeHeartbeat(C, 1, epoch, (ReplicaOffset(incarnation, 0, 1, 100),), leader.answered[C])
    leader.pass_time(DOWN_MS, B)
    assert leader.reign.hear(old, leader.now_ms), "it is alive"
    assert leader.carry_out() == (NodeDown(A, 1),), "what C has got since, nobody knows"
    leader.pass_time(500, B, C)
    leader.answered[C] = LeaderMoment(leader.reign.term, leader.now_ms)
    leader.pass_time(500, B, C)
    assert not leader.reign.hear(old, leader.now_ms), "it was overtaken"
    leader.carry_out()
    assert partition(leader.state).master == C


def test_whoever_has_less_than_the_new_master_has_to_show_that_it_caught_up() -> None:
    leader = led(A, B, C)
    leader.tell(B, 200)
    leader.tell(C, 199)
    assert chosen(leader) == B
    assert partition(leader.state).lagging == (A, C)
    leader.tell(C, 300, epoch=2)
    leader.pass_time(1_500, B, C)
    leader.carry_out()
    assert partition(leader.state).lagging == (A,)


def test_a_contact_is_as_old_as_the_word_that_tells_of_it() -> None:
    leader = led(A, B)
    leader.tell(B, contact_ms=0)
    asked = leader.answered[B]
    leader.pass_time(DOWN_MS + 1_000, A)
    incarnation = leader.state.topology.tables["t"].incarnation
    told = (ReplicaOffset(incarnation, 0, 1, 100, contact_ms=0),)
    leader.carry_out()
    leader.reign.hear(NodeHeartbeat(B, 1, leader.state.topology.epoch, told, asked), leader.now_ms)
    leader.carry_out()
    assert partition(leader.state).lagging == (B,)


def test_with_two_acks_the_choice_waits_for_those_who_may_have_them() -> None:
    leader = led(A, B, C, min_replicas=2)
    leader.pass_time(1_000, A, B)
    leader.pass_time(DOWN_MS, B)
    leader.carry_out()
    assert partition(leader.state).master is None, "what A and C have acked, B may lack"
    leader.tell(C, 300, lag_bytes=1 << 40)
    leader.pass_time(1_000, B, C)
    leader.carry_out()
    leader.pass_time(1_000, B, C)
    leader.carry_out()
    assert partition(leader.state).master == C


def test_after_a_replica_is_removed_the_others_show_that_they_have_what_it_acked() -> None:
    leader = led(A, B, C, min_replicas=2)
    leader.tell(A, 100)
    leader.tell(B, 90)
    leader.tell(C, 100)
    leader.pass_time(500, A, B, C)
    make(leader.state, RemoveSlave("t", 0, C))
    leader.carry_out()
    assert partition(leader.state).unproven == (B,)
    leader.pass_time(500, A, B)
    leader.carry_out()
    assert partition(leader.state).unproven == (B,)
    silent = Leader(leader.state)
    silent.tell(B, 90)
    silent.pass_time(2 * DOWN_MS, B)
    silent.carry_out()
    assert partition(silent.state).master is None, "what A and C acked, B lacks"
    shown = led(A, B, C, min_replicas=2)
    make(shown.state, RemoveSlave("t", 0, C))
    shown.carry_out()
    shown.pass_time(500, A, B)
    shown.carry_out()
    assert partition(shown.state).unproven == ()
    assert chosen(shown) == B


def test_a_node_that_is_being_declared_down_gets_no_lease_meanwhile() -> None:
    leader = led(A, B)
    leader.pass_time(DOWN_MS, B)
    changes = leader.plan()
    assert NodeDown(A, 1) in changes
    heartbeat = NodeHeartbeat(A, 1, 5, after=leader.answered[A])
    assert not leader.reign.hear(heartbeat, leader.now_ms), "two could be master at once"
    assert NodeDown(A, 1) in leader.plan(), "until it is known what came of it"
    make(leader.state, *changes)
    leader.reign.note(leader.state.topology, leader.now_ms)
    assert leader.reign.hear(heartbeat, leader.now_ms)
    assert leader.plan() == (NodeUp(A, 1),)


def test_a_restarted_master_competes_with_the_others_for_its_partitions() -> None:
    leader = led(A, B)
    make(leader.state, registered(A, run=2))
    leader.carry_out()
    leader.tell(A, 90, contact_ms=None)
    leader.tell(B, 95)
    leader.pass_time(500, B)
    assert leader.plan() == (), "A may have more"
    leader.pass_time(500, A, B)
    leader.carry_out()
    assert partition(leader.state).master == B


def test_a_master_that_repairs_is_replaced_once_all_know_that_it_is_none() -> None:
    leader = led(A, B, C, min_replicas=2)
    leader.pass_time(2_000, A, B, C)
    leader.tell(A, 90, is_candidate=False)
    leader.pass_time(500, A, B, C)
    epoch = partition(leader.state).epoch
    assert leader.carry_out() == (ChangeMaster("t", 0, epoch, None, ()),)
    leader.pass_time(500, B, C)
    assert leader.plan() == (), "A may not know it yet, and lead after all"
    leader.pass_time(500, A, B, C)
    leader.carry_out()
    assert partition(leader.state).master == B


def test_a_master_that_cannot_open_its_replica_is_replaced() -> None:
    leader = led(A, B)
    leader.pass_time(2_000, A, B)
    del leader.offsets[A][0]
    leader.pass_time(500, A, B)
    leader.carry_out()
    leader.pass_time(500, A, B)
    leader.carry_out()
    assert partition(leader.state).master == B
    assert partition(leader.state).lagging == (A,)


def test_what_was_just_given_to_a_node_may_be_opening() -> None:
    leader = Leader(state_with(A, B))
    del leader.offsets[A][0]
    leader.pass_time(1_500, A, B)
    assert leader.plan() == ()
    leader.pass_time(500, A, B)
    assert [type(each) for each in leader.plan()] == [ChangeMaster]


def test_slaves_are_marked_when_they_fall_behind_and_cleared_when_they_are_back() -> None:
    leader = led(A, B, C)
    leader.pass_time(DOWN_MS, A, B)
    assert [type(each) for each in leader.carry_out()] == [NodeDown, MarkSlaves]
    assert partition(leader.state).lagging == (C,)
    leader.tell(C, lag_bytes=60 << 20)
    leader.pass_time(1_000, A, B, C)
    assert leader.carry_out() == (NodeUp(C, 1),)
    leader.pass_time(1_000, A, B, C)
    assert leader.plan() == (), "half of the bound"
    leader.tell(C, lag_bytes=30 << 20)
    leader.pass_time(500, A, B, C)
    leader.carry_out()
    assert partition(leader.state).lagging == ()


def test_a_preferred_master_comes_back_by_a_hand_over_that_loses_nothing() -> None:
    leader = led(A, B)
    make(leader.state, SetMaster("t", 0, B))
    before = leader.state.topology.epoch
    assert leader.carry_out() == (BeginHandover("t", 0, before, B),)
    stuck = partition(leader.state)
    assert stuck.state is PartitionState.STUCK
    leader.tell(A, 100)
    leader.tell(B, 100)
    leader.now_ms += 100
    leader.beat(A, B, applied=before)
    assert leader.plan() == (), "A has not said that it is frozen"
    leader.tell(A, 101)
    leader.beat(A, B)
    assert leader.plan() == (), "B lacks the last one"
    leader.tell(B, 101)
    leader.beat(B)
    assert leader.carry_out() == (EndHandover("t", 0, stuck.epoch),)
    assert partition(leader.state).master == B


def test_a_node_that_leaves_hands_over_all_that_it_is_the_master_of() -> None:
    leader = led(A, B, C, partitions=6)
    leader.leaving = [A]
    for _ in range(20):
        leader.now_ms += 100
        leader.beat(A, B, C)
        leader.carry_out()
    masters = [partition(leader.state, number).master for number in range(6)]
    assert A not in masters
    assert sorted(map(masters.count, (B, C))) == [3, 3]
    leader.leaving = []
    leader.pass_time(5_000, A, B, C)
    assert [type(each) for each in leader.plan()] == [BeginHandover], "it is back"


def test_nothing_is_handed_over_to_a_node_that_leaves() -> None:
    leader = led(A, B)
    leader.leaving = [A, B]
    leader.beat(A, B)
    assert leader.plan() == ()
    make(leader.state, SetMaster("t", 0, B))
    assert leader.plan() == ()


def test_a_hand_over_is_given_up_in_time_and_not_begun_again_at_once() -> None:
    leader = led(A, B)
    make(leader.state, SetMaster("t", 0, B))
    leader.carry_out()
    stuck = partition(leader.state)
    leader.tell(A, 101)
    leader.pass_time(SETTINGS.handover_stuck_ms, A, B)
    assert leader.carry_out() == (CancelHandover("t", 0, stuck.epoch),)
    assert leader.plan() == ()
    leader.pass_time(PAUSE_MS_FIRST, A, B)
    assert [type(each) for each in leader.plan()] == [BeginHandover]


def test_each_hand_over_in_vain_is_followed_by_a_longer_pause() -> None:
    reign = LeaderTerm(1, 0)
    key, most = PartitionId(1, 0), SETTINGS.handover_pause_ms
    now, lengths = 0, []
    for _ in range(7):
        reign.pause_longer(key, most, now)
        lengths.append(reign.pauses[key].length_ms)
        assert reign.is_paused(key, now + lengths[-1] - 1)
        now += lengths[-1]
        assert not reign.is_paused(key, now)
    assert lengths[:3] == [PAUSE_MS_FIRST, 2 * PAUSE_MS_FIRST, 4 * PAUSE_MS_FIRST]
    assert lengths[-2:] == [most, most]


def test_a_hand_over_ends_with_its_target() -> None:
    leader = led(A, B)
    leader.pass_time(DOWN_MS - 1_000, A)
    make(leader.state, SetMaster("t", 0, B))
    leader.carry_out()
    stuck = partition(leader.state)
    leader.pass_time(1_000, A)
    assert leader.plan() == (NodeDown(B, 1), CancelHandover("t", 0, stuck.epoch))


def test_few_hand_overs_go_on_at_a_time_and_one_begins_after_the_other() -> None:
    leader = led(A, B, partitions=12)
    for number in range(12):
        make(leader.state, SetMaster("t", number, B))
    begun = []
    for _ in range(20):
        leader.now_ms += 100
        leader.beat(A, B, applied=0)
        begun += [each for each in leader.carry_out() if isinstance(each, BeginHandover)]
        assert len(begun) <= 1 + (leader.now_ms - 1_000_000) // SETTINGS.handover_every_ms
        stuck = [n for n in range(12) if partition(leader.state, n).target is not None]
        assert len(stuck) <= SETTINGS.handovers_max
    assert len(begun) >= 3


def test_a_slave_that_was_just_added_is_no_candidate() -> None:
    leader = led(A, B)
    make(leader.state, registered(C), AddSlave("t", 0, C))
    leader.carry_out()
    leader.tell(B, 5)
    leader.tell(C, 500, contact_ms=None)
    assert chosen(leader) == B


def test_many_partitions_are_planned_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_machine, "LOOKED_AT_MAX", 2)
    monkeypatch.setattr(state_machine, "FAILOVERS_MAX", 3)
    leader = led(A, B, partitions=14)
    for number in range(14):
        leader.tell(B, number=number, lag_bytes=1 << 40)
    leader.pass_time(500, A, B)
    masters = [number for number in range(14) if partition(leader.state, number).master == A]
    assert len(masters) == 7
    marked: list[Change] = []
    for _ in range(7):
        made = leader.carry_out()
        marked += made
        assert len(made) <= 2
    assert len(marked) == 7, "each of those that B follows"
    for number in range(14):
        leader.tell(B, number=number)
    leader.pass_time(1_000, A, B)
    for _ in range(7):
        leader.carry_out()
    leader.pass_time(DOWN_MS, B)
    chosen = [sum(isinstance(each, ChangeMaster) for each in leader.carry_out()) for _ in range(4)]
    assert chosen == [3, 3, 1, 0]


def test_lease_and_heartbeats_fit_into_the_time_until_a_node_is_down() -> None:
    for wrong in ({"lease_ms": 2_900}, {"heartbeat_ms": 1_500}, {"down_ms": 2_100}):
        with pytest.raises(ValueError, match="make it shorter"):
            ZeppelinMetaSettings(**wrong)
