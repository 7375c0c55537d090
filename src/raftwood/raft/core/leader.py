"""What a leader does: takes proposals, follows up on answers, serves reads, hands over."""

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
        # Appends in flight are most likely lost.
        if progress.state is REPLICATE:
            progress.become_probe()
    elif kind is MessageKind.TRANSFER_LEADER:
        _on_transfer(raft, message, progress)


# Time


def broadcast_heartbeat(raft: "Raft", context: bytes | None = None) -> None:
    """Send a heartbeat to all, with the read that waits for one."""
    if context is None:
        context = raft.pending_reads.last_context()
    committed = raft.log.committed
    for node, progress in raft.tracker.progress.items():
        if node == raft.id:
            continue
        # The follower may not have all that is committed; its match is safe to commit.
        commit = min(progress.match, committed)
        raft.send(Message(MessageKind.HEARTBEAT, node, commit=commit, context=context))
        progress.sent_commit = commit


def check_quorum(raft: "Raft") -> None:
    """Step down if no quorum was heard from within an election timeout (dissertation, 6.2)."""
    if not raft.tracker.quorum_active():
        raft.become_follower(raft.term, NOBODY)
    for node, progress in raft.tracker.progress.items():
        if node != raft.id:
            progress.recently_active = False


# Proposals


def _on_proposal(raft: "Raft", message: Message) -> None:
    entries = message.entries
    if not entries:
        raise InvariantViolated("a proposal without entries")
    if raft.id not in raft.tracker.progress:
        raise ProposalDropped(f"node {raft.id} was removed: propose to another node")
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
    progress.recently_active = True
    probe = message.reject_hint
    if message.log_term:
        # Skip whatever of ours is of a later term than the follower's hint: it cannot match.
        probe, _ = raft.log.find_conflict(probe, message.log_term)
    if progress.step_back(message.index, probe):
        if progress.state is REPLICATE:
            progress.become_probe()
        replication.send_append(raft, message.source, progress)


def _on_append_accepted(raft: "Raft", message: Message, progress: Progress) -> None:
    progress.recently_active = True
    index, node = message.index, message.source
    if not progress.acknowledge(index) and not (
        progress.match == index and progress.state is PROBE
    ):
        return
    if progress.state is REPLICATE:
        progress.inflights.free_to(index)
    elif progress.state is PROBE:
        progress.become_replicate()
    elif progress.match + 1 >= raft.log.first_index:
        # The log meets the follower's again, by this snapshot or by one from elsewhere.
        progress.become_replicate()
    own = node == raft.id
    # What is committed already cannot commit more: that spares the last answers the counting.
    if index > raft.log.committed and replication.try_commit(raft):
        _release_postponed_reads(raft)
        replication.broadcast_append(raft)
    elif not own and progress.can_bump_commit(raft.log.committed):
        replication.send_append(raft, node, progress)
    if own:
        return
    # The window has room again: fill it.
    while replication.send_append(raft, node, progress, even_empty=False):
        pass
    if node == raft.transferee and progress.match == raft.log.last_index:
        _send_timeout_now(raft, node)


def _on_heartbeat_response(raft: "Raft", message: Message, progress: Progress) -> None:
    progress.recently_active = True
    # Whatever paused the flow may have been lost: one more append finds out.
    progress.flow_paused = False
    if progress.match < raft.log.last_index or progress.state is PROBE:
        replication.send_append(raft, message.source, progress)
    context = message.context
    if not context or raft.settings.read_mode is not ReadMode.SAFE:
        return
    acknowledged = raft.pending_reads.acknowledge(message.source, context)
    if acknowledged and raft.tracker.vote_result(acknowledged) is VoteResult.WON:
        for pending in raft.pending_reads.confirm(context):
            _answer_read(raft, pending.request, pending.index)


def _on_snapshot_status(message: Message, progress: Progress) -> None:
    if progress.state is not SNAPSHOT:
        return
    if message.rejected:
        # It did not arrive, so that probing begins at the match and not after the snapshot.
        progress.pending_snapshot = 0
    progress.become_probe()
    # The append response that follows a snapshot's end, or the next heartbeat's, goes on.
    progress.flow_paused = True


# Reads


def _on_read(raft: "Raft", message: Message) -> None:
    if raft.tracker.singleton:
        _answer_read(raft, message, raft.log.committed)
    elif not raft.log.holds(raft.log.committed, term=raft.term):
        # Until it has committed in its term, a leader does not know the commit index
        # (dissertation, section 6.4).
        raft.postponed_reads.append(message)
    else:
        _start_read(raft, message)


def _start_read(raft: "Raft", message: Message) -> None:
    if raft.settings.read_mode is ReadMode.LEASE:
        _answer_read(raft, message, raft.log.committed)
        return
    raft.pending_reads.add(message, raft.log.committed)
    raft.pending_reads.acknowledge(raft.id, message.context)
    broadcast_heartbeat(raft, message.context)


def _answer_read(raft: "Raft", request: Message, index: int) -> None:
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
    if progress.is_learner or target in (raft.transferee, raft.id):
        return
    # Proposals are refused from now on, for an election timeout at most.
    raft.election_elapsed = 0
    raft.transferee = target
    if progress.match == raft.log.last_index:
        _send_timeout_now(raft, target)
    else:
        replication.send_append(raft, target, progress)


def _send_timeout_now(raft: "Raft", node: int) -> None:
    raft.send(Message(MessageKind.TIMEOUT_NOW, node))
