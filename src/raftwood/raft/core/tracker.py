"""The membership in force and, on a leader, the progress of every member and its flow control.

PROBE: the follower's log is unknown, one append at a time finds where it meets the leader's.
REPLICATE: appends are pipelined, bounded by messages and bytes in flight.
SNAPSHOT: the entries it needs are gone, nothing is sent until the snapshot has arrived.
"""

from collections import deque
from enum import Enum

from raftwood.base.errors import InvariantViolated
from raftwood.raft.core.messages import ConfState
from raftwood.raft.core.quorum import VoteResult, joint_vote, majority_committed, majority_vote


class ProgressState(Enum):
    """How the leader sends to the follower."""

    PROBE = "StateProbe"
    REPLICATE = "StateReplicate"
    SNAPSHOT = "StateSnapshot"


PROBE = ProgressState.PROBE
REPLICATE = ProgressState.REPLICATE
SNAPSHOT = ProgressState.SNAPSHOT


class Inflights:
    """Appends under way to one follower: their last indexes and their payload bytes."""

    __slots__ = ("_queue", "bytes_in_flight", "bytes_max", "messages_max")

    def __init__(self, messages_max: int, *, bytes_max: int = 0) -> None:
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        """Zero means no limit by bytes."""
        self.bytes_in_flight = 0
        self._queue: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def full(self) -> bool:
        return len(self._queue) >= self.messages_max or (
            self.bytes_max != 0 and self.bytes_in_flight >= self.bytes_max
        )

    def add(self, last_index: int, payload_bytes: int) -> None:
        if self.full:
            raise InvariantViolated("an append was sent although the window is full")
        self._queue.append((last_index, payload_bytes))
        self.bytes_in_flight += payload_bytes

    def free_to(self, index: int) -> None:
        """Appends up to an index have been answered."""
        queue = self._queue
        while queue and queue[0][0] <= index:
            self.bytes_in_flight -= queue.popleft()[1]

    def clear(self) -> None:
        self._queue.clear()
        self.bytes_in_flight = 0


class Progress:
    """One follower, or the leader itself."""

    __slots__ = (
        "flow_paused",
        "inflights",
        "is_learner",
        "match",
        "next",
        "pending_snapshot",
        "recently_active",
        "sent_commit",
        "state",
    )

    def __init__(
        self, *, match: int, next_index: int, inflights: Inflights, is_learner: bool
    ) -> None:
        self.match = match
        """The highest index known to be durable there and equal to the leader's."""
        self.next = next_index
        """The first index that was not sent; never at or below `match`."""
        self.sent_commit = 0
        """The highest commit index sent, as far as it makes sense to the follower."""
        self.state = PROBE
        self.pending_snapshot = 0
        self.recently_active = False
        """Heard from since the last quorum check."""
        self.flow_paused = False
        """A probe is under way or the window is full: a heartbeat's answer resumes."""
        self.inflights = inflights
        self.is_learner = is_learner

    @property
    def paused(self) -> bool:
        return self.flow_paused or self.state is SNAPSHOT

    def _enter(self, state: ProgressState, next_index: int) -> None:
        self.state = state
        self.flow_paused = False
        self.pending_snapshot = 0
        self.inflights.clear()
        self.next = next_index

    def become_probe(self) -> None:
        """Start to look for the match again, after the snapshot if one was sent."""
        # A snapshot that was reported as received need not be sent again from its beginning.
        sent = self.pending_snapshot if self.state is SNAPSHOT else 0
        self._enter(PROBE, max(self.match, sent) + 1)
        self.sent_commit = min(self.sent_commit, self.next - 1)

    def become_replicate(self) -> None:
        self._enter(REPLICATE, self.match + 1)

    def become_snapshot(self, index: int) -> None:
        self._enter(SNAPSHOT, index + 1)
        self.pending_snapshot = index
        self.sent_commit = index

    def sent_entries(self, count: int, payload_bytes: int) -> None:
        """Account for an append that was just sent."""
        if self.state is REPLICATE:
            inflights = self.inflights
            if count:
                self.next += count
                inflights.add(self.next - 1, payload_bytes)
            # A full window still lets an answer through that frees it, so pausing is enough.
            self.flow_paused = inflights.full
        elif self.state is PROBE:
            if count:
                self.flow_paused = True
        else:
            raise InvariantViolated("an append was sent to a follower that awaits a snapshot")

    def can_bump_commit(self, commit: int) -> bool:
        """Whether an append without entries would tell the follower of a newer commit."""
        return commit > self.sent_commit and self.sent_commit < self.next - 1

    def acknowledge(self, index: int) -> bool:
        """The follower has everything up to an index; answers whether that is news."""
        if index <= self.match:
            return False
        self.match = index
        if self.next <= index:
            self.next = index + 1
        self.flow_paused = False
        return True

    def step_back(self, rejected: int, hint: int) -> bool:
        """An append was refused; answers whether the refusal is current and `next` went back."""
        if self.state is REPLICATE:
            if rejected <= self.match:
                return False
            # The window is in disorder, so that only what is known to match is kept.
            self.next = self.match + 1
        else:
            # Only one probe is under way: anything else is a late answer.
            if self.next - 1 != rejected:
                return False
            self.next = max(min(rejected, hint + 1), self.match + 1)
            self.flow_paused = False
        self.sent_commit = min(self.sent_commit, self.next - 1)
        return True


class Membership:
    """Who votes and who only follows. A joint configuration has two voter sets."""

    __slots__ = ("auto_leave", "incoming", "learners", "learners_next", "outgoing")

    def __init__(self) -> None:
        self.incoming: set[int] = set()
        self.outgoing: set[int] = set()
        self.learners: set[int] = set()
        self.learners_next: set[int] = set()
        """Voters of the outgoing half that become learners on leaving it."""
        self.auto_leave = False

    def copy(self) -> "Membership":
        other = Membership()
        other.incoming = set(self.incoming)
        other.outgoing = set(self.outgoing)
        other.learners = set(self.learners)
        other.learners_next = set(self.learners_next)
        other.auto_leave = self.auto_leave
        return other

    @property
    def joint(self) -> bool:
        return bool(self.outgoing)

    @property
    def voters(self) -> set[int]:
        """The voters of both halves."""
        return self.incoming | self.outgoing

    def conf_state(self) -> ConfState:
        return ConfState(
            tuple(sorted(self.incoming)),
            tuple(sorted(self.learners)),
            tuple(sorted(self.outgoing)),
            tuple(sorted(self.learners_next)),
            self.auto_leave,
        )


class Tracker:
    """Membership, progress by node in ascending order, and the votes of the current election."""

    __slots__ = ("_inflight_bytes_max", "_inflight_messages_max", "members", "progress", "votes")

    def __init__(self, inflight_messages_max: int, *, inflight_bytes_max: int = 0) -> None:
        self._inflight_messages_max = inflight_messages_max
        self._inflight_bytes_max = inflight_bytes_max
        self.members = Membership()
        self.progress: dict[int, Progress] = {}
        """Kept in ascending order of ids, so that messages leave in a repeatable order."""
        self.votes: dict[int, bool] = {}

    def new_progress(self, *, match: int, next_index: int, is_learner: bool) -> Progress:
        inflights = Inflights(self._inflight_messages_max, bytes_max=self._inflight_bytes_max)
        return Progress(
            match=match, next_index=next_index, inflights=inflights, is_learner=is_learner
        )

    def adopt(self, members: Membership, progress: dict[int, Progress]) -> None:
        """Switch to another configuration."""
        self.members = members
        self.progress = dict(sorted(progress.items()))

    @property
    def singleton(self) -> bool:
        return len(self.members.incoming) == 1 and not self.members.outgoing

    def committed(self) -> int:
        """The highest index that is durable on a quorum; learners do not count."""
        acknowledged = {node: progress.match for node, progress in self.progress.items()}
        members = self.members
        committed = majority_committed(members.incoming, acknowledged)
        if members.outgoing:
            return min(committed, majority_committed(members.outgoing, acknowledged))
        return committed

    def quorum_active(self) -> bool:
        """Whether a quorum was heard from since the last check (dissertation, section 6.2)."""
        active = {
            node: progress.recently_active
            for node, progress in self.progress.items()
            if not progress.is_learner
        }
        return self.vote_result(active) is VoteResult.WON

    def vote_result(self, votes: dict[int, bool]) -> VoteResult:
        members = self.members
        if not members.outgoing:
            return majority_vote(members.incoming, votes)
        return joint_vote(members.incoming, members.outgoing, votes)

    def record_vote(self, node: int, *, granted: bool) -> None:
        """The first answer of a node counts, so that a duplicate cannot change it."""
        self.votes.setdefault(node, granted)
