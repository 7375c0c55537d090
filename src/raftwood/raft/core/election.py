"""Elections: standing for one, asking first whether it could be won, and voting.

Raft, section 5.2; pre-votes are section 9.6 of the dissertation. Two rules make an election safe: a
node votes once in a term, so that a term has one leader at most; and it votes for no log that is
less complete than its own, so that a leader has all that was ever committed (Raft, 5.4.1).
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
"""The context of vote requests that a leader ordered: voters that hear a leader answer them too."""

_VOTE_RESPONSE = MessageKind.VOTE_RESPONSE
_PREVOTE_RESPONSE = MessageKind.PREVOTE_RESPONSE
_SCAN_BYTES = 1 << 20
"""Log read at a time when looking for a change: the part that is not applied may be large."""


def stand(raft: "Raft", *, transfer: bool = False) -> None:
    """Start an election if the node may: a voter, not the leader, with its changes applied."""
    if raft.role is LEADER or not raft.promotable or _change_unapplied(raft):
        return
    if transfer or not raft.settings.prevote:
        # Pre-votes protect a leader from a node that cannot know better. Here the leader has
        # ordered the election itself (dissertation, section 3.10), and refuses proposals until it
        # is over. A round of pre-votes would make the pause longer, and voters that still hear the
        # leader would ignore it.
        _ask_for_votes(raft, context=TRANSFER if transfer else b"")
    else:
        _ask_for_prevotes(raft)


def _change_unapplied(raft: "Raft") -> bool:
    """Whether a committed membership change is not applied: the node may be no voter after it."""
    # A node counts votes by the membership that it has applied. Suppose it lags behind two
    # committed changes, from voters 1 to 3 to voters 1 to 5: it could win with 1 and 2 while 3, 4
    # and 5 elect another leader of the same term (dissertation, section 4.1). So a node that knows
    # of a change applies it before it stands. The host's own entries are no changes and hold nobody
    # up. Tests: test_raw_node::
    # test_a_change_that_is_not_applied_keeps_a_node_from_standing_for_election,
    # test_the_hosts_own_entries_keep_nobody_from_standing_for_election
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
    # Voters of both halves of a joint configuration, for it takes both to win (dissertation, 4.3).
    for node in sorted(raft.tracker.members.voters):
        if node == raft.id:
            # Its own vote counts once it is durable: a candidate that led a term, crashed and had
            # forgotten its vote could vote for another leader of that term.
            raft.send(Message(response, node, term=term))
        else:
            raft.send(
                Message(request, node, term=term, log_term=last_term, index=last, context=context)
            )


def on_vote_request(raft: "Raft", message: Message) -> None:
    """Grant a vote or pre-vote, or refuse it; in any role, learners too."""
    # A learner votes because it may have been promoted without knowing. Suppose voters 1 and 2 and
    # learner 3, and 3 is promoted. If 1 dies before 3 has the commit index of that change, 2 needs
    # the vote of 3. The candidate counts by its own membership, so a vote of a true learner counts
    # for nothing.
    prevote = message.kind is MessageKind.PREVOTE
    response = _PREVOTE_RESPONSE if prevote else _VOTE_RESPONSE
    # One vote in a term, and none once the term has a leader (Raft, 5.2): else two candidates could
    # both have a majority. Script: election.txt
    # The same candidate may ask again, because its answer may have been lost. A pre-vote binds
    # nobody, so it may be given to several candidates, and beside a vote in this term.
    can_vote = (
        raft.vote == message.source
        or (raft.vote == NOBODY and raft.lead == NOBODY)
        or (prevote and message.term > raft.term)
    )
    # Without the second condition a node that was away for long could win, and would overwrite
    # entries that a majority holds and clients were told of (Raft, 5.4.1). Planted bug: "vote for a
    # shorter log"
    if can_vote and raft.log.up_to_date(message.index, term=message.log_term):
        # The answer repeats the term that was asked about. A voter that was cut off may be terms
        # behind; the asker would take an answer with the voter's own term for an old one, and drop
        # it, though this vote may be the one that it needs. Script: forget_leader.txt
        raft.send(Message(response, message.source, term=message.term))
        if not prevote:
            # A candidate that was voted for gets a whole timeout (Raft, figure 2): a voter that
            # stands before would only split the vote. A pre-vote changes nothing here, or a node
            # that asks in vain could keep its voters from ever standing. Script: forget_leader.txt
            raft.election_elapsed = 0
            raft.vote = message.source
    else:
        # The refusal has this node's term, so that an asker of an older term learns of it. A node
        # that has never seen a term answers as of the first, because zero marks local messages.
        # Test: test_raw_node::test_a_node_that_never_saw_a_term_can_refuse_a_vote
        raft.send(Message(response, message.source, term=raft.term or 1, rejected=True))


def step_candidate(raft: "Raft", message: Message) -> None:
    """Messages that reach a candidate or pre-candidate in its own term."""
    kind = message.kind
    asks_first = raft.role is PRECANDIDATE
    # A late pre-vote is no vote: it was not made durable and binds nobody, so a leader that counted
    # it could have a rival in its term. Test: test_raw_node::test_a_late_prevote_is_no_vote
    if kind is (_PREVOTE_RESPONSE if asks_first else _VOTE_RESPONSE):
        _count_vote(raft, message, asks_first=asks_first)
    # Only the term's leader sends the next three, so the election is over (Raft, 5.2). A
    # pre-candidate has not left its term, and finds back to its leader here. Scripts: election.txt,
    # prevote.txt; test_raw_node::test_a_candidate_that_gets_a_snapshot_of_its_term_follows
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
    """Count an answer of a voter, and act if it decides the election."""
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
        # It keeps its term and its vote. Asking once more in this term could not change the
        # answers; as a follower it can vote in the next one and hear of the winner.
        raft.become_follower(raft.term, NOBODY)
