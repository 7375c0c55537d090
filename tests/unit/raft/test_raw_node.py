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
    return RawNode(RaftSettings(node=1, election_jitter=lambda _: 0, **options), storage)


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
    node.campaign()
    _work(node)
    for other in others:
        node.step(Message(MessageKind.VOTE_RESPONSE, 1, other, node.raft.term))
    _work(node)
    assert node.raft.role is Role.LEADER
    return node


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
    storage = MemoryStorage()
    storage.apply_snapshot(Snapshot(1, 1, ConfState((1,))))
    storage.append([Entry(1, 2, EntryKind.CONTROL, b"own")])
    storage.hard_state = HardState(1, 0, 2)
    node = _node(storage=storage)
    node.campaign()
    _work(node)
    assert node.raft.role is Role.LEADER


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
    node = _node(1, 2, 3)
    node.step(Message(MessageKind.SNAPSHOT, 1, 2, 1, snapshot=Snapshot(1, 1, ConfState((1, 2)))))
    ready = node.ready()
    assert (ready.snapshot, ready.messages[0].index) == (None, 1)


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
