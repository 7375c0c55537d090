"""A follower: takes its leader's messages, and passes requests on to the leader."""

from typing import TYPE_CHECKING

from raftwood.base.errors import InvariantViolated
from raftwood.raft.core import election, membership
from raftwood.raft.core.errors import ProposalDropped
from raftwood.raft.core.messages import FOLLOWER, NOBODY, Message, MessageKind, Snapshot
from raftwood.raft.core.reads import ReadState
from raftwood.raft.core.settings import ReadMode

if TYPE_CHECKING:
    from raftwood.raft.core.raft import Raft

_APPEND = MessageKind.APPEND
_APPEND_RESPONSE = MessageKind.APPEND_RESPONSE
_HEARTBEAT = MessageKind.HEARTBEAT
_HEARTBEAT_RESPONSE = MessageKind.HEARTBEAT_RESPONSE


def step(raft: "Raft", message: Message) -> None:
    """Messages that reach a follower in its own term."""
    # Any message of the leader counts as a sign of life, for its appends stand for heartbeats
    # (Raft, 5.2). A term has one leader, so its source is the leader, even where this node was told
    # of none.
    kind = message.kind
    if kind is _APPEND:
        raft.election_elapsed = 0
        raft.lead = message.source
        on_append(raft, message)
    elif kind is _HEARTBEAT:
        raft.election_elapsed = 0
        raft.lead = message.source
        on_heartbeat(raft, message)
    elif kind is MessageKind.SNAPSHOT:
        raft.election_elapsed = 0
        raft.lead = message.source
        on_snapshot(raft, message)
    elif kind is MessageKind.PROPOSE:
        _forward_proposal(raft, message)
    elif kind is MessageKind.READ_INDEX or kind is MessageKind.TRANSFER_LEADER:
        # Without a leader the request is dropped; the host asks again.
        if raft.lead != NOBODY:
            message.target = raft.lead
            message.term = 0
            raft.send(message)
    elif kind is MessageKind.READ_INDEX_RESPONSE:
        raft.read_states.append(ReadState(message.index, message.context))
    elif kind is MessageKind.TIMEOUT_NOW:
        # The leader has found this node's log equal to its own and takes no more proposals: waiting
        # for the timeout would only prolong the pause (dissertation, 3.10). Script: transfer.txt
        election.stand(raft, transfer=True)
    elif kind is MessageKind.FORGET_LEADER and raft.settings.read_mode is ReadMode.SAFE:
        # Not with lease reads: the leader answers from its clock because its followers elect nobody
        # for an election timeout. A follower that forgot it could vote at once, a new leader would
        # commit a write, and the old one would still answer without it. Script: lease_read.txt
        raft.lead = NOBODY


def _forward_proposal(raft: "Raft", message: Message) -> None:
    """Send a client's entries on to the leader; the leader or the network may still drop them."""
    if raft.lead == NOBODY:
        raise ProposalDropped(f"node {raft.id} knows no leader: try again after the election")
    if not raft.settings.proposal_forwarding:
        raise ProposalDropped(f"node {raft.id} forwards nothing: propose to node {raft.lead}")
    message.target = raft.lead
    raft.send(message)


def on_append(raft: "Raft", message: Message) -> None:
    """Take the leader's entries if they fit, else say where the logs may meet (Raft, 5.3)."""
    log = raft.log
    index = message.index
    if index < log.committed:
        # A late or repeated append. The leader of any term has all committed entries, so nothing
        # before the commit index can differ (Raft, figure 3, leader completeness), and the entry
        # before the append may be compacted here and no longer comparable. The answer tells the
        # leader to go on behind what is committed.
        raft.send(Message(_APPEND_RESPONSE, message.source, index=log.committed))
    elif log.try_append(index, message.log_term, message.entries, message.commit):
        # It acknowledges what the append covered and no more. The log may go on with entries of
        # an older leader; were they acknowledged too, the leader would commit by a copy that
        # differs.
        raft.send(Message(_APPEND_RESPONSE, message.source, index=index + len(message.entries)))
    else:
        # Going back one entry in each round, a leader needs a thousand rounds for a thousand
        # entries that only this node has. So the answer names the last entry here whose term is not
        # above that of the leader's: those behind it cannot be the leader's (Raft, end of 5.3). The
        # leader does the same with the term of the hint. Scripts: commit_of_old_term.txt,
        # snapshot.txt
        hint, hint_term = log.find_conflict(min(index, log.last_index), message.log_term)
        raft.send(
            Message(
                _APPEND_RESPONSE,
                message.source,
                log_term=hint_term,
                index=index,
                rejected=True,
                reject_hint=hint,
            )
        )


def on_heartbeat(raft: "Raft", message: Message) -> None:
    """Take the commit index, and answer with the read that the leader wants confirmed."""
    # A heartbeat does not compare logs, so its commit index must not go beyond what this node has
    # acknowledged: the entries here may differ behind that. The leader sends the lower of the two.
    raft.log.commit_to(message.commit)
    raft.send(Message(_HEARTBEAT_RESPONSE, message.source, context=message.context))


def on_snapshot(raft: "Raft", message: Message) -> None:
    """Restore a snapshot that is ahead of this node; the answer says where the leader goes on."""
    log = raft.log
    restored = message.snapshot is not None and _restore(raft, message.snapshot)
    index = log.last_index if restored else log.committed
    raft.send(Message(_APPEND_RESPONSE, message.source, index=index))


def _restore(raft: "Raft", snapshot: Snapshot) -> bool:
    """Replace the log by a snapshot; false if the log needs no replacing."""
    log = raft.log
    if snapshot.index <= log.committed:
        # A late or repeated snapshot. To restore it would take back entries that were applied, and
        # forget entries that this node has acknowledged.
        # Test: test_raw_node::test_an_old_snapshot_is_answered_with_what_is_committed
        return False
    if raft.role is not FOLLOWER:
        raise InvariantViolated("only a follower restores a snapshot")
    if log.holds(snapshot.index, term=snapshot.term):
        # The log has all that the snapshot has (log matching), and may go on behind it (Raft,
        # section 7). The leader may have counted those entries: to drop them for the snapshot would
        # break an acknowledgement. So the snapshot only shows how far the log is committed.
        # Test: test_raw_node::test_a_snapshot_of_what_the_log_holds_only_commits_it
        log.commit_to(snapshot.index)
        return False
    # This node may be missing in the snapshot's membership, because snapshots trail the log and the
    # entry that adds the node follows. To refuse it, as etcd does, would leave the node without any
    # way to catch up. Until that entry is applied the node is no voter in its own membership and
    # does not stand.
    # Test: test_raw_node::test_a_snapshot_older_than_the_membership_of_its_receiver_is_taken
    log.restore(snapshot)
    raft.restored_index = snapshot.index
    # Entries from before the snapshot may still be on their way to the state machine, and their
    # changes build on the membership from before: see `reconfiguration.apply_change`.
    raft.overtaken_tracker = raft.overtaken_tracker or raft.tracker
    raft.tracker = raft.new_tracker()
    membership.restore(raft.tracker, snapshot.configuration, last_index=log.last_index)
    return True
