"""What a leader knows of one follower, and how fast it may send to it.

PROBE: the follower's log is unknown, one append at a time finds where it meets the leader's.
REPLICATE: appends are pipelined, bounded by messages and bytes in flight.
SNAPSHOT: the entries it needs are gone, nothing is sent until the snapshot has arrived.
"""

from collections import deque
from enum import Enum

from raftwood.base.errors import InvariantViolated


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
