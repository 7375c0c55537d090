"""What a follower does with its leader's messages, and with requests that are its leader's."""

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
        if raft.lead != NOBODY:
            message.target = raft.lead
            message.term = 0
            raft.send(message)
    elif kind is MessageKind.READ_INDEX_RESPONSE:
        raft.read_states.append(ReadState(message.index, message.context))
    elif kind is MessageKind.TIMEOUT_NOW:
        election.stand(raft, transfer=True)
    elif kind is MessageKind.FORGET_LEADER and raft.settings.read_mode is ReadMode.SAFE:
        # A lease is a promise to the leader not to vote, which forgetting it would break.
        raft.lead = NOBODY


def _forward_proposal(raft: "Raft", message: Message) -> None:
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
        # A late or repeated append: what is committed never needs to be checked again.
        raft.send(Message(_APPEND_RESPONSE, message.source, index=log.committed))
    elif log.try_append(index, message.log_term, message.entries, message.commit):
        raft.send(Message(_APPEND_RESPONSE, message.source, index=index + len(message.entries)))
    else:
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
    # The leader sends at most what this node has acknowledged, so that the log cannot be shorter.
    raft.log.commit_to(message.commit)
    raft.send(Message(_HEARTBEAT_RESPONSE, message.source, context=message.context))


def on_snapshot(raft: "Raft", message: Message) -> None:
    """Restore the snapshot if it is news; the answer tells the leader where to go on."""
    log = raft.log
    restored = message.snapshot is not None and _restore(raft, message.snapshot)
    index = log.last_index if restored else log.committed
    raft.send(Message(_APPEND_RESPONSE, message.source, index=index))


def _restore(raft: "Raft", snapshot: Snapshot) -> bool:
    log = raft.log
    if snapshot.index <= log.committed:
        return False
    if raft.role is not FOLLOWER:
        raise InvariantViolated("only a follower restores a snapshot")
    if log.holds(snapshot.index, term=snapshot.term):
        # The log already leads there: the snapshot only shows how far it is committed.
        log.commit_to(snapshot.index)
        return False
    # The snapshot may be older than this node's membership: the entry that adds it follows. Until
    # it is applied, the node is no voter of its own configuration and does not stand.
    log.restore(snapshot)
    raft.restored_index = snapshot.index
    raft.overtaken_tracker = raft.overtaken_tracker or raft.tracker
    raft.tracker = raft.new_tracker()
    membership.restore(raft.tracker, snapshot.configuration, last_index=log.last_index)
    return True
