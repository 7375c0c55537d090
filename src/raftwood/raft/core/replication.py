"""How a leader sends its log: appends, snapshots to followers that are too far behind, and commit.

Raft, section 5.3; pipelining is section 10.2.2 of the dissertation. A leader sends without waiting
for its own disk, and counts its own copy like any other (dissertation, section 10.2.1).
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
    """Send the next entries to a follower unless it is paused; returns the message, if any.

    An append without entries carries a new commit index, or probes. `like` was just sent to another
    follower. In a healthy group all are equally far, and reading the log once for all of them is
    most of the cost. Test:
    test_replication::test_who_is_equally_far_gets_the_same_as_if_it_were_alone
    """
    if progress.paused:
        return None
    log = raft.log
    previous = progress.next - 1
    has_next = previous < log.last_index
    if not has_next and not even_empty:
        return None
    # The window bounds what a slow follower makes the network and this node's memory hold. Empty
    # appends pass a full one: they still carry the commit index. Script: replication.txt
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
            # The follower needs entries that are compacted, and only a snapshot has their effect
            # (Raft, section 7). Script: snapshot.txt
            return _send_snapshot(raft, node, progress)
    if not entries and not even_empty:
        return None
    # The whole commit index, though the follower may not have all of it: an append compares logs,
    # so the follower takes as much as the append covers (`RaftLog.try_append`).
    commit = log.committed
    message = Message(_APPEND, node, raft.id, raft.term, previous_term, previous, entries, commit)
    raft.messages.append(message)
    progress.sent_entries(len(entries), payload_bytes(entries) if entries else 0)
    progress.sent_commit = commit
    return message


def _send_snapshot(raft: "Raft", node: int, progress: Progress) -> Message | None:
    """Send a snapshot to a follower whose next entries are gone, unless it may be dead."""
    if not progress.recently_active:
        # A snapshot is expensive to read and send, and a follower that waits for one gets nothing
        # else. It is worth sending to a node that has answered since the last quorum check. Test:
        # test_raw_node::test_a_node_that_may_be_dead_gets_no_snapshot_until_it_answers
        return None
    try:
        snapshot = raft.log.unstable.snapshot or raft.log.storage.snapshot()
    except SnapshotNotReady:
        # The follower stays as it is: its next heartbeat's answer tries again.
        # Test: test_raw_node::test_a_snapshot_that_is_not_ready_is_asked_for_again
        return None
    if not snapshot.index:
        raise InvariantViolated(f"entries for node {node} are gone and there is no snapshot")
    progress.become_snapshot(snapshot.index)
    message = Message(MessageKind.SNAPSHOT, node, snapshot=snapshot)
    raft.send(message)
    return message


def broadcast_append(raft: "Raft") -> None:
    """Send the next entries, or the commit index, to every member but this node."""
    own = raft.id
    sent: Message | None = None
    for node, progress in raft.tracker.progress.items():
        if node != own:
            sent = send_append(raft, node, progress, like=sent)


def try_commit(raft: "Raft") -> bool:
    """Commit the entries of this term that a quorum has, and all before them (Raft, 5.4.2)."""
    return raft.log.try_commit(raft.tracker.committed(), term=raft.term)
