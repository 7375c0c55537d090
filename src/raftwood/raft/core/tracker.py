"""The membership in force and, on a leader, the progress of every member."""

from raftwood.raft.core.messages import ConfState
from raftwood.raft.core.progress import Inflights, Progress
from raftwood.raft.core.quorum import (
    VoteResult,
    joint_vote,
    majority_committed,
    majority_vote,
)


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
