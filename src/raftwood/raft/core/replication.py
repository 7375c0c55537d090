"""How a leader sends its log: appends, snapshots to those who are too far behind, and commit.

Raft, section 5.3; pipelining is section 10.2.2 of the dissertation.
"""

from typing import TYPE_CHECKING

from raftwood.base.errors import InvariantViolated, OutOfRange
from raftwood.raft.core.errors import SnapshotNotReady
from raftwood.raft.core.messages import NO_ENTRIES, Message, MessageKind, payload_bytes
from raftwood.raft.core.progress import REPLICATE, Progress

if TYPE_CHECKING:
    from raftwood.raft.core.raft import Raft

_APPEND = MessageKind.APPEND


def send_append(raft: "Raft", node: int, progress: Progress, *, even_empty: bool = True) -> bool:
    """Send the next entries to a follower unless it is paused; answers whether anything went out.

    An append without entries tells of a new commit index, or probes.
    """
    if progress.paused:
        return False
    log = raft.log
    previous = progress.next - 1
    try:
        previous_term = log.term(previous)
        entries = NO_ENTRIES
        # A full window sends empty appends only: they still carry the commit index.
        if previous < log.last_index and not (
            progress.state is REPLICATE and progress.inflights.full
        ):
            entries = log.entries(previous + 1, raft.settings.message_bytes_max)
    except OutOfRange:
        # The storage has compacted what the follower needs.
        return _send_snapshot(raft, node, progress)
    if not entries and not even_empty:
        return False
    commit = log.committed
    raft.messages.append(
        Message(_APPEND, node, raft.id, raft.term, previous_term, previous, entries, commit)
    )
    progress.sent_entries(len(entries), payload_bytes(entries) if entries else 0)
    progress.sent_commit = commit
    return True


def _send_snapshot(raft: "Raft", node: int, progress: Progress) -> bool:
    if not progress.recently_active:
        # A snapshot is dear: it is not sent to a node that may be dead.
        return False
    try:
        snapshot = raft.log.unstable.snapshot or raft.log.storage.snapshot()
    except SnapshotNotReady:
        return False
    if not snapshot.index:
        raise InvariantViolated(f"entries for node {node} are gone and there is no snapshot")
    progress.become_snapshot(snapshot.index)
    raft.send(Message(MessageKind.SNAPSHOT, node, snapshot=snapshot))
    return True


def broadcast_append(raft: "Raft") -> None:
    own = raft.id
    for node, progress in raft.tracker.progress.items():
        if node != own:
            send_append(raft, node, progress)


def try_commit(raft: "Raft") -> bool:
    """Commit what a quorum has of this term (Raft, 5.4.2)."""
    return raft.log.try_commit(raft.tracker.committed(), term=raft.term)
