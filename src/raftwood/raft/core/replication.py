"""How a leader sends its log: appends, snapshots to those who are too far behind, and commit.

Raft, section 5.3; pipelining is section 10.2.2 of the dissertation.
"""

from typing import TYPE_CHECKING

from raftwood.base.errors import InvariantViolated, OutOfRange
from raftwood.raft.core.errors import SnapshotNotReady
from raftwood.raft.core.messages import NO_ENTRIES, Message, MessageKind, payload_bytes
from raftwood.raft.core.tracker import REPLICATE, Progress

if TYPE_CHECKING:
    from raftwood.raft.core.raft import Raft

_APPEND = MessageKind.APPEND


def send_append(
    raft: "Raft",
    node: int,
    progress: Progress,
    *,
    even_empty: bool = True,
    like: Message | None = None,
) -> Message | None:
    """Send the next entries to a follower unless it is paused; answers what went out, if anything.

    An append without entries tells of a new commit index, or probes. `like` was just sent to
    another follower: its entries need not be looked up again for one that is equally far.
    """
    if progress.paused:
        return None
    log = raft.log
    previous = progress.next - 1
    has_next = previous < log.last_index
    if not has_next and not even_empty:
        return None
    # A full window sends empty appends only: they still carry the commit index.
    if has_next and progress.state is REPLICATE and progress.inflights.full:
        has_next = False
    if (
        like is not None
        and like.kind is _APPEND
        and like.index == previous
        and bool(like.entries) is has_next
    ):
        previous_term, entries = like.log_term, like.entries
    else:
        try:
            previous_term = log.term(previous)
            entries = NO_ENTRIES
            if has_next:
                entries = log.entries(previous + 1, raft.settings.message_bytes_max)
        except OutOfRange:
            # The storage has compacted what the follower needs.
            return _send_snapshot(raft, node, progress)
    if not entries and not even_empty:
        return None
    commit = log.committed
    message = Message(_APPEND, node, raft.id, raft.term, previous_term, previous, entries, commit)
    raft.messages.append(message)
    progress.sent_entries(len(entries), payload_bytes(entries) if entries else 0)
    progress.sent_commit = commit
    return message


def _send_snapshot(raft: "Raft", node: int, progress: Progress) -> Message | None:
    if not progress.recently_active:
        # A snapshot is dear: it is not sent to a node that may be dead.
        return None
    try:
        snapshot = raft.log.unstable.snapshot or raft.log.storage.snapshot()
    except SnapshotNotReady:
        return None
    if not snapshot.index:
        raise InvariantViolated(f"entries for node {node} are gone and there is no snapshot")
    progress.become_snapshot(snapshot.index)
    message = Message(MessageKind.SNAPSHOT, node, snapshot=snapshot)
    raft.send(message)
    return message


def broadcast_append(raft: "Raft") -> None:
    own = raft.id
    sent: Message | None = None
    for node, progress in raft.tracker.progress.items():
        if node != own:
            sent = send_append(raft, node, progress, like=sent)


def try_commit(raft: "Raft") -> bool:
    """Commit what a quorum has of this term (Raft, 5.4.2)."""
    return raft.log.try_commit(raft.tracker.committed(), term=raft.term)
