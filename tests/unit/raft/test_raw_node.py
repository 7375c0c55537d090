"""What callers of a node meet: refusals, limits, restarts, and the order of their duties."""

from typing import Any

import pytest

from raftwood.base.errors import InvalidConfiguration, InvariantViolated
from raftwood.raft.core import (
    APPEND_THREAD,
    IS_CHANGE,
    ChangeStep,
    ChangeV1,
    ChangeV2,
    ConfState,
    Entry,
    EntryKind,
    HardState,
    LocalMessageRefused,
    MemoryStorage,
    Message,
    MessageKind,
    ProposalDropped,
    RaftSettings,
    RawNode,
    ReadMode,
    Ready,
    Role,
    Snapshot,
    SnapshotNotReady,
    StepKind,
    Transition,
    UnknownPeer,
    change_entry,
    change_of,
)


def _node(*voters: int, storage: MemoryStorage | None = None, **options: Any) -> RawNode:
    storage = storage or MemoryStorage()
    if not storage.last_index():
        storage.apply_snapshot(Snapshot(1, 1, ConfState(voters)))
    options.setdefault("applied", 1)
    options.setdefault("election_jitter", lambda _: 0)
    return RawNode(RaftSettings(node=1, **options), storage)


def _storage_of(node: RawNode) -> MemoryStorage:
    storage = node.raft.log.storage
    assert isinstance(storage, MemoryStorage)
    return storage


def _work(node: RawNode) -> list[Ready]:
    """Do a host's duties until nothing is left."""
    done = []
    while node.has_ready():
        ready = node.ready()
        storage = _storage_of(node)
        storage.append(ready.entries)
        if ready.hard_state is not None:
            storage.hard_state = ready.hard_state
        for entry in ready.committed_entries:
            if IS_CHANGE[entry.kind]:
                node.apply_change(entry)
        node.advance()
        done.append(ready)
    return done


def _leader(*others: int, **options: Any) -> RawNode:
    node = _node(1, *others, **options)
    _win(node, *others)
    assert node.raft.role is Role.LEADER
    return node


def _win(node: RawNode, *others: int) -> None:
    node.campaign()
    _work(node)
    for other in others:
        node.step(Message(MessageKind.VOTE_RESPONSE, 1, other, node.raft.term))
    _work(node)


def _answer(node: RawNode, source: int, index: int) -> list[Ready]:
    """A follower has entries up to an index; returns what the leader does then."""
    node.step(Message(MessageKind.APPEND_RESPONSE, 1, source, node.raft.term, index=index))
    return _work(node)


def _storage(*entries: Entry, configuration: ConfState, commit: int = 1) -> MemoryStorage:
    """A log that goes on from a snapshot at index 1, as a node of term 1 stored it."""
    storage = MemoryStorage()
    storage.apply_snapshot(Snapshot(1, 1, configuration))
    storage.append(list(entries))
    storage.hard_state = HardState(1, 0, commit)
    return storage


def _change(change: ChangeV1 | ChangeV2, index: int) -> Entry:
    entry = change_entry(change)
    entry.term, entry.index = 1, index
    return entry


@pytest.mark.parametrize(
    "options",
    [
        {"node": 0},
        {"node": APPEND_THREAD},
        {"heartbeat_ticks": 0},
        {"election_ticks": 1},
        {"inflight_messages_max": 0},
        {"inflight_bytes_max": 10},
        {"read_mode": ReadMode.LEASE},
    ],
)
def test_settings_that_cannot_work_are_refused(options: Any) -> None:
    with pytest.raises(InvalidConfiguration):
        RaftSettings(**({"node": 1, "election_jitter": lambda _: 0} | options))


def test_a_peer_cannot_send_what_never_leaves_a_node() -> None:
    node = _node(1, 2, 3)
    for kind in (MessageKind.HUP, MessageKind.UNREACHABLE, MessageKind.STORAGE_APPEND_RESPONSE):
        with pytest.raises(LocalMessageRefused):
            node.step(Message(kind, 1, 2))


def test_an_answer_of_a_stranger_is_refused() -> None:
    with pytest.raises(UnknownPeer):
        _leader(2).step(Message(MessageKind.APPEND_RESPONSE, 1, 9, 1, index=5))


def test_a_proposal_without_a_leader_may_be_tried_again() -> None:
    node = _node(1, 2, 3)
    with pytest.raises(ProposalDropped) as caught:
        node.propose([b"x"])
    assert caught.value.retriable
    node.campaign()
    with pytest.raises(ProposalDropped):
        node.propose([b"x"])


def test_a_follower_that_forwards_nothing_names_its_leader() -> None:
    node = _node(1, 2, 3, proposal_forwarding=False)
    node.step(Message(MessageKind.HEARTBEAT, 1, 2, 1))
    with pytest.raises(ProposalDropped, match="node 2"):
        node.propose([b"x"])


def test_a_ready_has_to_be_advanced_before_the_next() -> None:
    node = _node(1)
    node.campaign()
    node.ready()
    node.raft.become_follower(5, 0)
    with pytest.raises(InvariantViolated, match="advanced"):
        node.ready()


def test_advance_has_no_meaning_with_asynchronous_writes() -> None:
    with pytest.raises(InvariantViolated):
        _node(1, async_storage_writes=True).advance()


def test_a_leader_counts_itself_only_once_its_write_is_durable() -> None:
    node = _leader(2, 3)
    node.propose([b"x"])
    ready = node.ready()
    index = ready.entries[-1].index
    # Both followers could answer before the leader's own disk; one is not enough without it.
    node.step(Message(MessageKind.APPEND_RESPONSE, 1, 2, node.raft.term, index=index))
    assert node.raft.log.committed < index
    node.advance()
    assert node.raft.log.committed == index


def test_a_vote_waits_for_the_write_and_an_append_does_not() -> None:
    node = _node(1, 2, 3, async_storage_writes=True)
    node.step(Message(MessageKind.VOTE, 1, 2, 5, 1, 1))
    (message,) = node.ready().messages
    assert message.target == APPEND_THREAD
    assert (message.term, message.vote) == (5, 2)
    assert [answer.kind for answer in message.responses] == [MessageKind.VOTE_RESPONSE]


def test_a_change_that_cannot_be_applied_becomes_an_empty_entry() -> None:
    node = _leader()
    node.propose_change(ChangeV1(ChangeStep(StepKind.REMOVE, 1)))
    node.propose_change(ChangeV2(transition=Transition.AUTO))
    entries = [entry for ready in _work(node) for entry in ready.entries]
    assert [entry.kind for entry in entries] == [EntryKind.NORMAL] * 2
    assert node.status().configuration == ConfState((1,))


def test_a_second_change_has_to_wait_for_the_first() -> None:
    node = _leader()
    node.propose_change(ChangeV1(ChangeStep(StepKind.ADD_LEARNER, 2)))
    node.propose_change(ChangeV1(ChangeStep(StepKind.ADD_LEARNER, 3)))
    _work(node)
    assert node.status().configuration == ConfState((1,), (2,))


def test_the_hosts_own_entries_are_no_changes() -> None:
    node = _leader()
    node.propose([b"own"] * 2, EntryKind.CONTROL)
    node.propose_change(ChangeV1(ChangeStep(StepKind.ADD_LEARNER, 2)))
    entries = [entry for ready in _work(node) for entry in ready.committed_entries]
    kinds = [EntryKind.CONTROL, EntryKind.CONTROL, EntryKind.CHANGE_V1]
    assert [entry.kind for entry in entries] == kinds
    assert entries[0].payload == b"own"


def test_the_hosts_own_entries_keep_nobody_from_standing_for_election() -> None:
    own = Entry(1, 2, EntryKind.CONTROL, b"own")
    node = _node(storage=_storage(own, configuration=ConfState((1,)), commit=2))
    node.campaign()
    _work(node)
    assert node.raft.role is Role.LEADER


def test_a_change_that_is_not_applied_keeps_a_node_from_standing_for_election() -> None:
    change = _change(ChangeV1(ChangeStep(StepKind.ADD_LEARNER, 2)), 2)
    node = _node(storage=_storage(change, configuration=ConfState((1,)), commit=2))
    node.campaign()
    assert node.status().role is Role.FOLLOWER
    _work(node)
    node.campaign()
    assert node.status().role is Role.CANDIDATE


def test_a_new_leader_applies_what_its_predecessor_left_before_it_proposes_a_change() -> None:
    change = _change(ChangeV1(ChangeStep(StepKind.ADD_VOTER, 3)), 2)
    node = _node(storage=_storage(change, configuration=ConfState((1, 2))))
    _win(node, 2)
    for kind in (EntryKind.NORMAL, EntryKind.CHANGE_V1):
        node.propose_change(ChangeV1(ChangeStep(StepKind.ADD_VOTER, 4)))
        entries = [entry for ready in _work(node) for entry in ready.entries]
        assert [entry.kind for entry in entries] == [kind]
        _answer(node, 2, node.raft.log.last_index)


def test_both_halves_of_a_joint_configuration_elect_a_leader() -> None:
    joint = ConfState(voters=(1, 2, 3), voters_outgoing=(1, 4, 5))
    node = _node(storage=_storage(configuration=joint))
    _win(node, 2, 3)
    assert node.status().role is Role.CANDIDATE
    node.step(Message(MessageKind.VOTE_RESPONSE, 1, 4, node.raft.term))
    assert node.status().role is Role.LEADER


@pytest.mark.parametrize("transition", [Transition.JOINT_IMPLICIT, Transition.JOINT_EXPLICIT])
def test_a_leader_leaves_a_joint_configuration_once_it_has_applied_it(
    transition: Transition,
) -> None:
    node = _leader(2, 3)
    node.propose_change(ChangeV2((ChangeStep(StepKind.REMOVE, 3),), transition))
    node.propose([b"x"])
    _work(node)
    last = node.raft.log.last_index
    _answer(node, 2, last - 1)
    assert node.status().configuration.voters_outgoing == (1, 2, 3)
    _answer(node, 2, last)
    leaves = transition is Transition.JOINT_IMPLICIT
    assert node.raft.log.last_index == last + leaves, "it proposes to leave once"
    _answer(node, 2, last + leaves)
    assert (node.status().configuration == ConfState((1, 2))) is leaves


def test_a_late_prevote_is_no_vote() -> None:
    node = _node(1, 2, 3, prevote=True)
    node.campaign()
    _work(node)
    for voter in (2, 3):
        node.step(Message(MessageKind.PREVOTE_RESPONSE, 1, voter, 1))
        _work(node)
        assert node.raft.role is Role.CANDIDATE


def test_each_election_timeout_has_its_own_jitter() -> None:
    jitter = iter([3, 0, 5, 0])
    node = _node(1, 2, 3, election_jitter=lambda _: next(jitter))
    for ticks in (13, 10, 15):
        for _ in range(ticks):
            term = node.raft.term
            node.tick()
        assert node.raft.term == term + 1


def test_a_change_survives_its_entry() -> None:
    step = ChangeStep(StepKind.ADD_VOTER, 7)
    for change in (
        ChangeV1(step, b"context"),
        ChangeV2((step, step), Transition.JOINT_EXPLICIT, b"context"),
        ChangeV2(),
    ):
        assert change_of(change_entry(change)) == change
    with pytest.raises(InvariantViolated):
        change_of(Entry(kind=EntryKind.CHANGE_V1, payload=b"nonsense"))


def test_a_restart_goes_on_where_storage_and_state_machine_stand() -> None:
    node = _leader()
    for _ in range(3):
        node.propose([b"x"])
        _work(node)
    storage = _storage_of(node)
    last = storage.last_index()
    # Applied state may be durable before the commit index is.
    storage.hard_state = HardState(storage.hard_state.term, storage.hard_state.vote, 2)
    again = _node(1, storage=storage, applied=last - 1)
    assert again.raft.log.committed == last - 1
    assert again.raft.term == node.raft.term
    with pytest.raises(InvariantViolated, match="lost"):
        _node(1, storage=storage, applied=last + 1)
    storage.hard_state = HardState(1, 1, last + 1)
    with pytest.raises(InvariantViolated, match="lost"):
        _node(1, storage=storage)


def test_a_node_that_never_saw_a_term_can_refuse_a_vote() -> None:
    node = _node(1, 2, 3, prevote=True)
    node.step(Message(MessageKind.PREVOTE, 1, 2, 1, log_term=0, index=0))
    (ready,) = _work(node)
    (answer,) = ready.messages
    assert answer.rejected
    assert answer.term == 1


def test_a_snapshot_that_is_not_ready_is_asked_for_again() -> None:
    class Slow(MemoryStorage):
        ready = False

        def snapshot(self) -> Snapshot:
            if not self.ready:
                raise SnapshotNotReady("being made")
            return super().snapshot()

    storage = Slow()
    storage.apply_snapshot(Snapshot(5, 1, ConfState((1, 2))))
    node = _leader(2, storage=storage, applied=5)
    term = node.raft.term
    node.step(Message(MessageKind.APPEND_RESPONSE, 1, 2, term, index=5, rejected=True))
    assert [ready.messages for ready in _work(node)] == []
    storage.ready = True
    node.step(Message(MessageKind.HEARTBEAT_RESPONSE, 1, 2, term))
    (ready,) = _work(node)
    assert ready.messages[0].snapshot == storage.snapshot()


def test_a_snapshot_older_than_the_membership_of_its_receiver_is_taken() -> None:
    node = RawNode(RaftSettings(node=1, election_jitter=lambda _: 0), MemoryStorage())
    snapshot = Snapshot(9, 2, ConfState((2, 3)))
    node.step(Message(MessageKind.SNAPSHOT, 1, 2, 2, snapshot=snapshot))
    assert node.ready().snapshot == snapshot
    node.advance()
    assert not node.raft.promotable
    node.campaign()
    assert node.raft.role is Role.FOLLOWER


def test_an_overtaken_change_is_told_as_of_its_entry() -> None:
    node = _node(1, 2, async_storage_writes=True)
    entry = change_entry(ChangeV1(ChangeStep(StepKind.ADD_LEARNER, 5)))
    entry.term, entry.index = 1, 2
    node.step(Message(MessageKind.APPEND, 1, 2, 1, 1, 1, [entry], 2))
    (write, *_) = node.ready().messages
    _storage_of(node).append(write.entries)
    for answer in write.responses:
        if answer.target == 1:
            node.step(answer)
    (apply,) = [item for item in node.ready().messages if item.kind is MessageKind.STORAGE_APPLY]
    # Before the entry is applied, a snapshot arrives that is far beyond it.
    later = ConfState((1, 2, 3))
    node.step(Message(MessageKind.SNAPSHOT, 1, 2, 1, snapshot=Snapshot(20, 1, later)))
    assert node.apply_change(apply.entries[0]) == ConfState((1, 2), (5,))
    assert node.status().configuration == later


def test_reads_before_the_first_commit_of_a_term_wait_for_it() -> None:
    storage = MemoryStorage()
    storage.apply_snapshot(Snapshot(1, 1, ConfState((1, 2, 3))))
    storage.hard_state = HardState(1, 0, 1)
    node = _node(storage=storage)
    node.campaign()
    _work(node)
    node.step(Message(MessageKind.VOTE_RESPONSE, 1, 2, 2))
    node.read_index(b"early")
    assert [ready.read_states for ready in _work(node) if ready.read_states] == []
    last = node.raft.log.last_index
    node.step(Message(MessageKind.APPEND_RESPONSE, 1, 2, 2, index=last))
    _work(node)
    node.step(Message(MessageKind.HEARTBEAT_RESPONSE, 1, 3, 2, context=b"early"))
    (state,) = [state for ready in _work(node) for state in ready.read_states]
    assert (state.index, state.context) == (last, b"early")


@pytest.mark.parametrize("is_put_off", [False, True])
def test_a_read_ends_with_its_leaders_term_of_office(is_put_off: bool) -> None:
    node = _leader(2, storage=_storage(configuration=ConfState((1, 2, 3))))
    if not is_put_off:
        _answer(node, 2, node.raft.log.last_index)
    node.read_index(b"old")
    # Another node leads term 3 and commits there, before this one leads again.
    node.step(Message(MessageKind.HEARTBEAT, 1, 2, 3))
    _win(node, 2)
    _answer(node, 2, node.raft.log.last_index)
    node.step(Message(MessageKind.HEARTBEAT_RESPONSE, 1, 2, 4, context=b"old"))
    assert [ready.read_states for ready in _work(node) if ready.read_states] == []


def test_the_next_heartbeats_repeat_a_lost_round_and_confirm_all_reads_before() -> None:
    node = _leader(2, 3)
    _answer(node, 2, node.raft.log.last_index)
    node.read_index(b"first")
    node.read_index(b"second")
    _work(node)  # The round is lost.
    node.tick()
    (ready,) = _work(node)
    assert [each.context for each in ready.messages] == [b"second"] * 2
    node.step(Message(MessageKind.HEARTBEAT_RESPONSE, 1, 2, 1, context=b"second"))
    (ready,) = _work(node)
    assert [state.context for state in ready.read_states] == [b"first", b"second"]


def test_uncommitted_bytes_are_bounded_and_given_back() -> None:
    node = _leader(2, uncommitted_bytes_max=10)
    node.propose([b"12345678"])
    with pytest.raises(ProposalDropped, match="8 bytes"):
        node.propose([b"123"])
    _work(node)
    last = node.raft.log.last_index
    node.step(Message(MessageKind.APPEND_RESPONSE, 1, 2, 1, index=last))
    _work(node)
    node.propose([b"123"])


def test_what_is_larger_than_the_bound_passes_alone_and_empty_entries_pass_it() -> None:
    node = _leader(2, uncommitted_bytes_max=10)
    node.propose([bytes(11)])
    node.propose([b""])
    with pytest.raises(ProposalDropped):
        node.propose([b"1"])


def test_a_candidate_that_gets_a_snapshot_of_its_term_follows() -> None:
    node = _node(1, 2, 3)
    node.campaign()
    _work(node)
    snapshot = Snapshot(9, 1, ConfState((1, 2, 3)))
    node.step(Message(MessageKind.SNAPSHOT, 1, 2, node.raft.term, snapshot=snapshot))
    assert node.raft.role is Role.FOLLOWER
    assert node.ready().snapshot == snapshot


def test_a_snapshot_of_what_the_log_holds_only_commits_it() -> None:
    node = _node(1, 2, 3)
    node.step(Message(MessageKind.APPEND, 1, 2, 1, 1, 1, [Entry(1, 2), Entry(1, 3)], 1))
    _work(node)
    node.step(Message(MessageKind.SNAPSHOT, 1, 2, 1, snapshot=Snapshot(2, 1, ConfState((1, 2)))))
    ready = node.ready()
    assert ready.snapshot is None
    assert [entry.index for entry in ready.committed_entries] == [2]
    assert ready.messages[0].index == 2
    assert node.raft.log.last_index == 3


def test_an_old_snapshot_is_answered_with_what_is_committed() -> None:
    storage = MemoryStorage()
    storage.apply_snapshot(Snapshot(5, 1, ConfState((1, 2, 3))))
    node = _node(storage=storage, applied=5)
    # The log cannot compare it with an entry: those up to 5 are compacted.
    node.step(Message(MessageKind.SNAPSHOT, 1, 2, 1, snapshot=Snapshot(3, 1, ConfState((1, 2)))))
    ready = node.ready()
    assert (ready.snapshot, ready.messages[0].index) == (None, 5)


def test_a_leader_without_peers_reads_at_once() -> None:
    node = _leader()
    node.read_index(b"now")
    (ready,) = _work(node)
    assert [state.index for state in ready.read_states] == [node.raft.log.committed]


def test_a_ready_does_not_change_after_it_was_handed_out() -> None:
    node = _leader()
    node.propose([b"x"])
    ready = node.ready()
    _storage_of(node).append(ready.entries)
    node.advance()
    counts = [len(ready.entries), len(ready.messages), len(ready.read_states)]
    node.propose([b"y"])
    node.read_index(b"later")
    _work(node)
    assert [len(ready.entries), len(ready.messages), len(ready.read_states)] == counts


def test_a_prevote_of_an_old_term_is_told_the_new_one() -> None:
    node = _node(1, 2, 3, prevote=True)
    node.step(Message(MessageKind.HEARTBEAT, 1, 2, 7))
    _work(node)
    node.step(Message(MessageKind.PREVOTE, 1, 3, 4, 1, 1))
    (ready,) = _work(node)
    (answer,) = ready.messages
    assert (answer.kind, answer.term, answer.rejected) == (MessageKind.PREVOTE_RESPONSE, 7, True)


def test_a_leader_of_an_old_term_is_told_the_new_one_where_nobody_else_would() -> None:
    for check_quorum, answers in ((True, 1), (False, 0)):
        node = _node(1, 2, 3, check_quorum=check_quorum)
        node.step(Message(MessageKind.HEARTBEAT, 1, 2, 7))
        _work(node)
        node.step(Message(MessageKind.APPEND, 1, 3, 4, 1, 1))
        assert sum(len(ready.messages) for ready in _work(node)) == answers


def test_an_entry_that_came_back_is_durable_only_by_its_last_write() -> None:
    node = _node(1, 2, 3, async_storage_writes=True)
    writes = []
    # The leader of term 2 replaces entry 2 of term 1, and that of term 3 brings it back.
    for term, entry_term in ((1, 1), (2, 2), (3, 1)):
        node.step(Message(MessageKind.APPEND, 1, 2, term, 1, 1, [Entry(entry_term, 2)], 1))
        writes += node.ready().messages
    for write, is_durable in zip(writes, (False, False, True), strict=True):
        node.step(write.responses[-1])
        assert (not node.raft.log.unstable.entries) is is_durable


def test_a_snapshot_written_in_an_old_term_still_counts() -> None:
    node = _node(1, 2, 3, async_storage_writes=True)
    snapshot = Snapshot(9, 1, ConfState((1, 2, 3)))
    node.step(Message(MessageKind.SNAPSHOT, 1, 2, 1, snapshot=snapshot))
    (write,) = node.ready().messages
    node.step(Message(MessageKind.HEARTBEAT, 1, 3, 8))
    for answer in write.responses:
        if answer.target == 1:
            node.step(answer)
    assert node.status().applied == 9
    assert node.raft.log.unstable.snapshot is None


def test_a_removed_leader_takes_no_proposals() -> None:
    node = _leader(2)
    node.propose_change(ChangeV1(ChangeStep(StepKind.REMOVE, 1)))
    _work(node)
    last = node.raft.log.last_index
    node.step(Message(MessageKind.APPEND_RESPONSE, 1, 2, 1, index=last))
    _work(node)
    assert node.raft.role is Role.LEADER
    with pytest.raises(ProposalDropped, match="removed"):
        node.propose([b"x"])


def test_a_smaller_majority_commits_what_it_has_as_soon_as_the_change_is_applied() -> None:
    node = _leader(2, 3, 4)
    node.propose_change(ChangeV1(ChangeStep(StepKind.REMOVE, 4)))
    node.propose([b"x"])
    _work(node)
    last = node.raft.log.last_index
    _answer(node, 2, last)
    done = _answer(node, 3, last - 1)
    assert node.raft.log.committed == last
    told = {each.target: each.commit for ready in done for each in ready.messages}
    assert told == {2: last, 3: last}


def test_a_transfer_ends_when_its_target_is_removed() -> None:
    node = _leader(2, 3)
    node.propose_change(ChangeV1(ChangeStep(StepKind.REMOVE, 3)))
    node.transfer_leadership(3)
    with pytest.raises(ProposalDropped, match="passing to node 3"):
        node.propose([b"x"])
    _work(node)
    _answer(node, 2, node.raft.log.last_index)
    node.propose([b"x"])


def test_a_transfer_that_is_asked_for_again_ends_at_its_time() -> None:
    node = _leader(2, 3)
    for _ in range(2):
        node.transfer_leadership(3)
        for _ in range(5):
            node.tick()
    node.propose([b"x"])


def test_a_learner_is_not_handed_the_leadership() -> None:
    node = _leader(2, storage=_storage(configuration=ConfState((1, 2), (3,))))
    node.transfer_leadership(3)
    node.propose([b"x"])


def test_a_node_that_may_be_dead_gets_no_snapshot_until_it_answers() -> None:
    node = _leader(2, 3, check_quorum=True)
    last = node.raft.log.last_index
    _answer(node, 3, last)
    node.propose([b"x"])
    _work(node)
    _answer(node, 2, last + 1)
    storage = _storage_of(node)
    storage.create_snapshot(last + 1, ConfState((1, 2, 3)), b"")
    storage.compact(last + 1)
    # Node 3 is silent for two quorum checks: the first one still counts its answer.
    for _ in range(2):
        node.step(Message(MessageKind.HEARTBEAT_RESPONSE, 1, 2, node.raft.term))
        for _ in range(10):
            node.tick()
    _work(node)
    node.report_unreachable(3)
    node.propose([b"y"])
    assert {each.target for ready in _work(node) for each in ready.messages} == {2}
    node.step(Message(MessageKind.HEARTBEAT_RESPONSE, 1, 3, node.raft.term))
    (ready,) = _work(node)
    assert [each.kind for each in ready.messages] == [MessageKind.SNAPSHOT]
