"""A leader: takes proposals, reacts to its followers' answers, serves reads, hands over."""

from typing import TYPE_CHECKING

from raftwood.base.errors import InvariantViolated
from raftwood.raft.core import reconfiguration, replication
from raftwood.raft.core.errors import ProposalDropped
from raftwood.raft.core.messages import NOBODY, Message, MessageKind
from raftwood.raft.core.quorum import VoteResult
from raftwood.raft.core.reads import ReadState
from raftwood.raft.core.settings import ReadMode
from raftwood.raft.core.tracker import PROBE, REPLICATE, SNAPSHOT, Progress

if TYPE_CHECKING:
    from raftwood.raft.core.raft import Raft

_APPEND_RESPONSE = MessageKind.APPEND_RESPONSE
_HEARTBEAT_RESPONSE = MessageKind.HEARTBEAT_RESPONSE
_PROPOSE = MessageKind.PROPOSE


def step(raft: "Raft", message: Message) -> None:
    """Messages that reach a leader in its own term."""
    kind = message.kind
    if kind is _PROPOSE:
        _on_proposal(raft, message)
        return
    if kind is MessageKind.READ_INDEX:
        _on_read(raft, message)
        return
    progress = raft.tracker.progress.get(message.source)
    # A local report about a node that was removed meanwhile; `RawNode.step` refuses its answers.
    if progress is None:
        return
    if kind is _APPEND_RESPONSE:
        if message.rejected:
            _on_append_rejected(raft, message, progress)
        else:
            _on_append_accepted(raft, message, progress)
    elif kind is _HEARTBEAT_RESPONSE:
        _on_heartbeat_response(raft, message, progress)
    elif kind is MessageKind.SNAPSHOT_STATUS:
        _on_snapshot_status(message, progress)
    elif kind is MessageKind.UNREACHABLE:
        # Appends in flight are most likely lost, and each that follows would be refused for the
        # gap. One append at a time finds out where to go on.
        if progress.state is REPLICATE:
            progress.become_probe()
    elif kind is MessageKind.TRANSFER_LEADER:
        _on_transfer(raft, message, progress)


# Time


def broadcast_heartbeat(raft: "Raft", context: bytes | None = None) -> None:
    """Send a heartbeat to all, with the newest read that waits for confirmation."""
    if context is None:
        context = raft.pending_reads.last_context()
    committed = raft.log.committed
    for node, progress in raft.tracker.progress.items():
        if node == raft.id:
            continue
        # A heartbeat does not compare logs. Behind its match, the follower may hold entries of an
        # older leader, and with the full commit index it would apply those. Script: conflict.txt
        commit = min(progress.match, committed)
        raft.send(Message(MessageKind.HEARTBEAT, node, commit=commit, context=context))
        progress.sent_commit = commit


def check_quorum(raft: "Raft") -> None:
    """Step down if no quorum was heard from within an election timeout (dissertation, 6.2).

    A leader on the wrong side of a partition would keep its clients waiting for commits that cannot
    come, instead of sending them to its successor. And lease reads are safe only if the lease ends
    before somebody else can lead. Script: lease_read.txt
    """
    if not raft.tracker.quorum_active():
        raft.become_follower(raft.term, NOBODY)
    # Each check counts its own period only, or a follower that answered once would count for ever.
    for node, progress in raft.tracker.progress.items():
        if node != raft.id:
            progress.recently_active = False


# Proposals


def _on_proposal(raft: "Raft", message: Message) -> None:
    entries = message.entries
    if not entries:
        raise InvariantViolated("a proposal without entries")
    # A leader may be removed while it leads (dissertation, section 4.2.2). It replicates what it
    # has until others know of the change, but begins nothing that it may not see the end of.
    # Test: test_raw_node::test_a_removed_leader_takes_no_proposals
    if raft.id not in raft.tracker.progress:
        raise ProposalDropped(f"node {raft.id} was removed: propose to another node")
    # The leader asks the target to stand once their logs are equal. If the log still grew, they
    # might never be, or the target would lose the election for an entry that it lacks
    # (dissertation, 3.10).
    # The script transfer.txt shows it.
    if raft.transferee != NOBODY:
        raise ProposalDropped(f"leadership is passing to node {raft.transferee}: try again")
    reconfiguration.screen_proposal(raft, entries)
    if not raft.append_entries(entries):
        raise ProposalDropped(
            f"{raft.uncommitted_bytes} bytes wait to be committed: try again later"
        )
    replication.broadcast_append(raft)


# Answers of followers


def _on_append_rejected(raft: "Raft", message: Message, progress: Progress) -> None:
    """Look for the place where the logs meet further back (Raft, 5.3)."""
    progress.recently_active = True
    probe = message.reject_hint
    if message.log_term:
        # Entries here of a later term than the follower's hint cannot be in its log up to there,
        # because terms never fall along a log. Suppose its log ends in a thousand entries of term
        # 3, where this log goes on from term 2 with term 5: one round goes back to term 2.
        probe, _ = raft.log.find_conflict(probe, message.log_term)
    if progress.step_back(message.index, probe):
        # Something was lost or is out of order: pipelining on would have every append refused.
        if progress.state is REPLICATE:
            progress.become_probe()
        replication.send_append(raft, message.source, progress)


def _on_append_accepted(raft: "Raft", message: Message, progress: Progress) -> None:
    """Count what is durable on a node: commit, resume the flow to it, go on with a transfer."""
    progress.recently_active = True
    index, node = message.index, message.source
    # An answer that tells nothing new is dropped, but for one: an empty append that probed at the
    # known match. It shows that the follower is there, and ends the probing.
    if not progress.acknowledge(index) and not (
        progress.match == index and progress.state is PROBE
    ):
        return
    if progress.state is REPLICATE:
        progress.inflights.free_to(index)
    elif progress.state is PROBE:
        progress.become_replicate()
    elif progress.match + 1 >= raft.log.first_index:
        # The log meets the follower's again, by this snapshot or by one from elsewhere. It need not
        # have reached the snapshot that was sent: the entries it lacks are all here, so to wait for
        # that one would only pause it. Script: snapshot.txt
        progress.become_replicate()
    own = node == raft.id
    # An answer for what is committed already cannot commit more: most answers spare the counting.
    if index > raft.log.committed and replication.try_commit(raft):
        _release_postponed_reads(raft)
        replication.broadcast_append(raft)
    elif not own and progress.can_bump_commit(raft.log.committed):
        # This follower was behind when the others committed, so no append has told it the commit
        # index. In a group that goes quiet it would not apply its last entries until a heartbeat.
        replication.send_append(raft, node, progress)
    if own:
        return
    # The answer freed room in the window. One append is not enough: appends are cut by size, and a
    # follower that catches up would get one for each answer, far below what its window allows.
    while replication.send_append(raft, node, progress, even_empty=False):
        pass
    # Only with the whole log can the target win against every other voter (dissertation, 3.10).
    if node == raft.transferee and progress.match == raft.log.last_index:
        _send_timeout_now(raft, node)


def _on_heartbeat_response(raft: "Raft", message: Message, progress: Progress) -> None:
    """Resume a flow that may have stalled, and count the confirmation of a read."""
    progress.recently_active = True
    # The append or answer that would resume a paused flow may be lost, and nothing else would send
    # it again. A follower that answers heartbeats is there, so one more append finds out.
    # The script replication.txt shows it.
    progress.flow_paused = False
    if progress.match < raft.log.last_index or progress.state is PROBE:
        replication.send_append(raft, message.source, progress)
    context = message.context
    if not context or raft.settings.read_mode is not ReadMode.SAFE:
        return
    # A quorum that answered a heartbeat of this term, sent after the read came, had no newer leader
    # then. Without that, a leader that was cut off would answer from before its successor's writes
    # (dissertation, section 6.4). Planted bug: "read without a quorum"
    acknowledged = raft.pending_reads.acknowledge(message.source, context)
    if acknowledged and raft.tracker.vote_result(acknowledged) is VoteResult.WON:
        for pending in raft.pending_reads.confirm(context):
            _answer_read(raft, pending.request, pending.index)


def _on_snapshot_status(message: Message, progress: Progress) -> None:
    """The transport sent a snapshot, or gave up; either way the waiting ends here."""
    # A late report: the follower's own answer came first and the flow goes on already.
    if progress.state is not SNAPSHOT:
        return
    if message.rejected:
        # It did not arrive, so probing begins at the match: an append after the snapshot could only
        # be refused. Script: snapshot.txt
        progress.pending_snapshot = 0
    progress.become_probe()
    # No append yet. After a failure the next try would most likely fail too; after a success the
    # follower is still restoring. Its answer to the snapshot or to the next heartbeat resumes.
    progress.flow_paused = True


# Reads


def _on_read(raft: "Raft", message: Message) -> None:
    """Find an index at which a read sees all that was committed before it began."""
    if raft.tracker.singleton:
        # Nobody else can be elected, so nobody needs to be asked.
        _answer_read(raft, message, raft.log.committed)
    elif not raft.log.holds(raft.log.committed, term=raft.term):
        # A new leader has all committed entries and does not know yet which they are: its
        # predecessor may have committed and acked entries that are above the commit index here. A
        # read at this index would miss them. The first commit of its own term covers them all
        # (dissertation, section 6.4).
        # Test: test_raw_node::test_reads_before_the_first_commit_of_a_term_wait_for_it
        raft.postponed_reads.append(message)
    else:
        _start_read(raft, message)


def _start_read(raft: "Raft", message: Message) -> None:
    """Confirm that this node still leads, by its lease or by a round of heartbeats."""
    if raft.settings.read_mode is ReadMode.LEASE:
        # Safe while clocks agree: `check_quorum` ends the lease before the others may elect
        # (dissertation, section 6.4.1). A process that was stopped for longer and goes on answers
        # from an old state, which is why our hosts use no leases (decision 0007).
        _answer_read(raft, message, raft.log.committed)
        return
    # The index is taken before the round begins. What commits during the round may be missing in
    # the read, which is allowed; what was committed before the read came is covered.
    raft.pending_reads.add(message, raft.log.committed)
    raft.pending_reads.acknowledge(raft.id, message.context)
    broadcast_heartbeat(raft, message.context)


def _answer_read(raft: "Raft", request: Message, index: int) -> None:
    """Answer the node that asked: this one, or the follower that passed the read on."""
    if request.source in (NOBODY, raft.id):
        raft.read_states.append(ReadState(index, request.context))
    else:
        raft.send(
            Message(
                MessageKind.READ_INDEX_RESPONSE,
                request.source,
                index=index,
                context=request.context,
            )
        )


def _release_postponed_reads(raft: "Raft") -> None:
    if not raft.postponed_reads or not raft.log.holds(raft.log.committed, term=raft.term):
        return
    reads, raft.postponed_reads = raft.postponed_reads, []
    for message in reads:
        _start_read(raft, message)


# Handing over


def _on_transfer(raft: "Raft", message: Message, progress: Progress) -> None:
    """Bring the target up to date, then tell it to stand at once (dissertation, section 3.10)."""
    target = message.source
    # A learner cannot stand. A repeated request must not begin the timeout anew, or a client that
    # asks again and again would keep proposals out for ever.
    # Tests: test_raw_node::test_a_learner_is_not_handed_the_leadership,
    # test_a_transfer_that_is_asked_for_again_ends_at_its_time
    if progress.is_learner or target in (raft.transferee, raft.id):
        return
    # Proposals are refused from now on, until the election timeout that begins here has passed.
    raft.election_elapsed = 0
    raft.transferee = target
    if progress.match == raft.log.last_index:
        _send_timeout_now(raft, target)
    else:
        replication.send_append(raft, target, progress)


def _send_timeout_now(raft: "Raft", node: int) -> None:
    raft.send(Message(MessageKind.TIMEOUT_NOW, node))
