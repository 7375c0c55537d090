"""The membership in force and, on a leader, the progress of every member and its flow control.

PROBE: the follower's log is unknown, one append at a time finds where it meets the leader's.
REPLICATE: appends are pipelined, bounded by messages and bytes in flight.
SNAPSHOT: the entries it needs are gone, nothing is sent until the snapshot has arrived.

A follower goes from PROBE to REPLICATE when it acknowledges an append, and back when it refuses one
or cannot be reached. It enters SNAPSHOT when its next entry is compacted. It leaves for PROBE when
the snapshot was sent or has failed, or for REPLICATE when it acknowledges entries that the leader's
log goes on from.

The paper knows `next` and `match` and no states (Raft, 5.3). The states save messages: as long as
the place where the logs meet is unknown, all appends but one would be refused, and while a snapshot
is on its way, all of them. Scripts: replication.txt, snapshot.txt
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
    """Appends under way to one follower: their last indexes and their payload bytes.

    A leader that pipelines without a bound would fill the buffers of the network, and its own, with
    entries for a follower that has stopped. Test:
    test_progress::test_windows_count_as_a_plain_list_does
    """

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
        # Asked before an append, whose size is not known yet. So the last one may pass the bound on
        # bytes: with "would it fit" an append larger than the window could never be sent.
        # Test: test_progress::test_a_window_is_full_by_messages_or_by_bytes
        return len(self._queue) >= self.messages_max or (
            self.bytes_max != 0 and self.bytes_in_flight >= self.bytes_max
        )

    def add(self, last_index: int, payload_bytes: int) -> None:
        if self.full:
            raise InvariantViolated("an append was sent although the window is full")
        self._queue.append((last_index, payload_bytes))
        self.bytes_in_flight += payload_bytes

    def free_to(self, index: int) -> None:
        """Appends up to an index have been answered.

        An answer covers all appends before it, so an answer that is lost costs nothing.
        """
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
        """The highest commit index sent, so that no empty append repeats one."""
        self.state = PROBE
        self.pending_snapshot = 0
        """Index of the snapshot that is under way; zero outside SNAPSHOT, or after a failure."""
        self.recently_active = False
        """Heard from since the last quorum check."""
        self.flow_paused = False
        """A probe is under way or the window is full; an answer resumes the flow.

        The answer to a heartbeat does too: the append that would be answered may be lost.
        """
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
        """Look for the match anew, after the snapshot if one was sent."""
        # The transport reports the end of a snapshot before the follower has answered for it, so
        # `match` is still from before. Probing there would need compacted entries, and the same
        # snapshot would be sent again. Test:
        # test_progress::test_after_a_snapshot_probing_begins_behind_it
        sent = self.pending_snapshot if self.state is SNAPSHOT else 0
        self._enter(PROBE, max(self.match, sent) + 1)
        # The append that carried this commit index may be among those that were lost.
        self.sent_commit = min(self.sent_commit, self.next - 1)

    def become_replicate(self) -> None:
        """Pipeline appends from the known match on."""
        self._enter(REPLICATE, self.match + 1)

    def become_snapshot(self, index: int) -> None:
        """Send nothing more until a snapshot at an index has arrived or failed."""
        self._enter(SNAPSHOT, index + 1)
        self.pending_snapshot = index
        # The follower commits up to the snapshot's index by restoring it.
        self.sent_commit = index

    def sent_entries(self, count: int, payload_bytes: int) -> None:
        """Account for an append that was just sent."""
        if self.state is REPLICATE:
            inflights = self.inflights
            if count:
                self.next += count
                inflights.add(self.next - 1, payload_bytes)
            # Whatever resumes a full window, an answer or a heartbeat, may send one empty append:
            # it carries the commit index, and its answer shows what was lost.
            self.flow_paused = inflights.full
        elif self.state is PROBE:
            # `next` stays: the probe is repeated from there if it is lost. A second one would tell
            # nothing that the first does not. Test: test_progress::test_a_probe_goes_out_alone
            if count:
                self.flow_paused = True
        else:
            raise InvariantViolated("an append was sent to a follower that awaits a snapshot")

    def can_bump_commit(self, commit: int) -> bool:
        """Whether an append without entries would advance the follower's commit index."""
        # The follower commits no further than the entries that it was sent, which end before
        # `next`.
        return commit > self.sent_commit and self.sent_commit < self.next - 1

    def acknowledge(self, index: int) -> bool:
        """The follower has everything up to an index; returns whether that is new."""
        # Answers may come late or twice. An acknowledgement is for good, so `match` never goes
        # back: the leader may have committed by it. Test:
        # test_progress::test_a_late_acknowledgement_is_no_news
        if index <= self.match:
            return False
        self.match = index
        if self.next <= index:
            self.next = index + 1
        self.flow_paused = False
        return True

    def step_back(self, rejected: int, hint: int) -> bool:
        """An append was refused; returns whether the refusal is current and `next` went back."""
        # Refusals may come late or twice as well. To obey an old one would send entries again that
        # the follower has, and each of those could be refused late again.
        # Test: test_progress::test_a_refusal_goes_back_once
        if self.state is REPLICATE:
            if rejected <= self.match:
                return False
            # The logs met at `match` once, so an append was lost or overtaken: go on from there.
            # The hint may be from before and says less.
            self.next = self.match + 1
        else:
            # Only one probe is under way, so any other refusal is late.
            if self.next - 1 != rejected:
                return False
            # At least one entry back, or the same probe would be refused for ever.
            self.next = max(min(rejected, hint + 1), self.match + 1)
            self.flow_paused = False
        self.sent_commit = min(self.sent_commit, self.next - 1)
        return True


class Membership:
    """The voters and the learners. A joint configuration has two voter sets."""

    __slots__ = ("auto_leave", "incoming", "learners", "learners_next", "outgoing")

    def __init__(self) -> None:
        self.incoming: set[int] = set()
        self.outgoing: set[int] = set()
        self.learners: set[int] = set()
        self.learners_next: set[int] = set()
        """Voters of the outgoing half that become learners when it is left.

        Until then the outgoing half counts their votes and acknowledgements. Script: membership.txt
        """
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
        """The highest index that is durable on a quorum; learners do not count.

        A learner's vote counts for nothing, so an entry on learners alone could be missing in the
        next leader (dissertation, section 4.2.1). Planted bug: "learner counted as voter"
        """
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
        """The outcome of an election, a read's round or a quorum check, in both halves.

        Test: test_raw_node::test_both_halves_of_a_joint_configuration_elect_a_leader
        """
        members = self.members
        if not members.outgoing:
            return majority_vote(members.incoming, votes)
        return joint_vote(members.incoming, members.outgoing, votes)

    def record_vote(self, node: int, *, granted: bool) -> None:
        """Note a voter's answer. The first one counts, so a repeated message changes nothing."""
        self.votes.setdefault(node, granted)
