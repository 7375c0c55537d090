"""Elections: standing for one, asking first whether it could be won, and voting.

Raft, section 5.2; pre-votes are section 9.6 of the dissertation.
"""

from typing import TYPE_CHECKING, Final

from raftwood.raft.core import follower, replication
from raftwood.raft.core.errors import ProposalDropped
from raftwood.raft.core.messages import (
    IS_CHANGE,
    LEADER,
    NOBODY,
    PRECANDIDATE,
    Message,
    MessageKind,
)
from raftwood.raft.core.quorum import VoteResult

if TYPE_CHECKING:
    from raftwood.raft.core.raft import Raft

TRANSFER: Final = b"CampaignTransfer"
"""The context of votes that a leader asked for: they pass the other nodes' leases."""

_VOTE_RESPONSE = MessageKind.VOTE_RESPONSE
_PREVOTE_RESPONSE = MessageKind.PREVOTE_RESPONSE
_SCAN_BYTES = 1 << 20


def stand(raft: "Raft", *, transfer: bool = False) -> None:
    """Start an election if the node may: a voter, not the leader, with its changes applied."""
    if raft.role is LEADER or not raft.promotable or _change_unapplied(raft):
        return
    if transfer or not raft.settings.prevote:
        # A transfer asks for no pre-votes: the leader itself has given way.
        _ask_for_votes(raft, context=TRANSFER if transfer else b"")
    else:
        _ask_for_prevotes(raft)


def _change_unapplied(raft: "Raft") -> bool:
    """Whether a committed membership change still waits: the node may not be a voter after it."""
    log = raft.log
    low = log.applied + 1
    while low <= log.committed:
        entries = log.slice(low, log.committed + 1, _SCAN_BYTES)
        if any(IS_CHANGE[entry.kind] for entry in entries):
            return True
        low += len(entries)
    return False


def _ask_for_prevotes(raft: "Raft") -> None:
    raft.become_precandidate()
    _send_requests(raft, MessageKind.PREVOTE, _PREVOTE_RESPONSE, raft.term + 1, b"")


def _ask_for_votes(raft: "Raft", *, context: bytes) -> None:
    raft.become_candidate()
    _send_requests(raft, MessageKind.VOTE, _VOTE_RESPONSE, raft.term, context)


def _send_requests(
    raft: "Raft", request: MessageKind, response: MessageKind, term: int, context: bytes
) -> None:
    last, last_term = raft.log.last_index, raft.log.last_term
    for node in sorted(raft.tracker.members.voters):
        if node == raft.id:
            # Its own vote counts once it is durable.
            raft.send(Message(response, node, term=term))
        else:
            raft.send(
                Message(request, node, term=term, log_term=last_term, index=last, context=context)
            )


def on_vote_request(raft: "Raft", message: Message) -> None:
    """Vote or not, in any role; learners do too, for they may be voters without knowing it yet."""
    prevote = message.kind is MessageKind.PREVOTE
    response = _PREVOTE_RESPONSE if prevote else _VOTE_RESPONSE
    can_vote = (
        raft.vote == message.source  # It asks again.
        or (raft.vote == NOBODY and raft.lead == NOBODY)
        or (prevote and message.term > raft.term)
    )
    if can_vote and raft.log.up_to_date(message.index, term=message.log_term):
        # A pre-vote is granted for the term that was asked about, which is not this node's.
        raft.send(Message(response, message.source, term=message.term))
        if not prevote:
            raft.election_elapsed = 0
            raft.vote = message.source
    else:
        # A node that has never seen a term answers as of the first: zero marks local messages.
        raft.send(Message(response, message.source, term=raft.term or 1, rejected=True))


def step_candidate(raft: "Raft", message: Message) -> None:
    """Messages that reach a candidate or pre-candidate in its own term."""
    kind = message.kind
    asks_first = raft.role is PRECANDIDATE
    if kind is (_PREVOTE_RESPONSE if asks_first else _VOTE_RESPONSE):
        _count_vote(raft, message, asks_first=asks_first)
    elif kind is MessageKind.APPEND:
        raft.become_follower(message.term, message.source)
        follower.on_append(raft, message)
    elif kind is MessageKind.HEARTBEAT:
        raft.become_follower(message.term, message.source)
        follower.on_heartbeat(raft, message)
    elif kind is MessageKind.SNAPSHOT:
        raft.become_follower(message.term, message.source)
        follower.on_snapshot(raft, message)
    elif kind is MessageKind.PROPOSE:
        raise ProposalDropped(f"node {raft.id} knows no leader: try again after the election")


def _count_vote(raft: "Raft", message: Message, *, asks_first: bool) -> None:
    tracker = raft.tracker
    tracker.record_vote(message.source, granted=not message.rejected)
    result = tracker.vote_result(tracker.votes)
    if result is VoteResult.WON:
        if asks_first:
            _ask_for_votes(raft, context=b"")
        else:
            raft.become_leader()
            replication.broadcast_append(raft)
    elif result is VoteResult.LOST:
        raft.become_follower(raft.term, NOBODY)
