"""The state of one raft node and the rules that hold in every role.

`step` takes a message, `tick` the passing of time. What is to be sent gathers in `messages`, and in
`messages_after_append` for what promises durability; `RawNode` hands both out. Terms are dealt with
here, then the message goes to the role's module: `follower`, `election` or `leader`.
"""

from collections.abc import Callable

from raftwood.base.errors import InvariantViolated
from raftwood.raft.core import election, follower, leader, membership
from raftwood.raft.core.log import RaftLog
from raftwood.raft.core.messages import (
    CANDIDATE,
    EMPTY_HARD_STATE,
    ENTRY_OVERHEAD_BYTES,
    FOLLOWER,
    FROM_LEADER,
    IS_VOTE,
    LEADER,
    NEEDS_SYNC,
    NOBODY,
    PRECANDIDATE,
    Entry,
    HardState,
    Message,
    MessageKind,
    Snapshot,
    payload_bytes,
)
from raftwood.raft.core.reads import PendingReads, ReadState
from raftwood.raft.core.reconfiguration import propose_leaving_joint
from raftwood.raft.core.settings import RaftSettings
from raftwood.raft.core.storage import Storage
from raftwood.raft.core.tracker import Tracker

_APPEND = MessageKind.APPEND
_APPEND_RESPONSE = MessageKind.APPEND_RESPONSE
_HEARTBEAT = MessageKind.HEARTBEAT
_PROPOSE = MessageKind.PROPOSE
_PREVOTE = MessageKind.PREVOTE
_PREVOTE_RESPONSE = MessageKind.PREVOTE_RESPONSE
_READ_INDEX = MessageKind.READ_INDEX
_STORAGE_APPEND_RESPONSE = MessageKind.STORAGE_APPEND_RESPONSE


class Raft:
    """One node of one group. `RawNode` is the door to it."""

    __slots__ = (
        "_randomize_election",
        "_step_role",
        "election_elapsed",
        "election_timeout",
        "heartbeat_elapsed",
        "id",
        "lead",
        "log",
        "messages",
        "messages_after_append",
        "overtaken_tracker",
        "pending_change_index",
        "pending_reads",
        "postponed_reads",
        "read_states",
        "restored_index",
        "role",
        "settings",
        "term",
        "tracker",
        "transferee",
        "uncommitted_bytes",
        "vote",
    )

    def __init__(self, settings: RaftSettings, storage: Storage) -> None:
        self.settings = settings
        self.id = settings.node
        applying_bytes_max = settings.applying_bytes_max
        if applying_bytes_max is None:
            applying_bytes_max = settings.message_bytes_max
        self.log = RaftLog(storage, applying_bytes_max=applying_bytes_max)
        self.messages: list[Message] = []
        self.messages_after_append: list[Message] = []
        self.read_states: list[ReadState] = []
        self.pending_reads = PendingReads()
        self.postponed_reads: list[Message] = []
        """Reads that came before the leader has committed an entry of its own term."""
        self.tracker = self.new_tracker()
        self.term = 0
        self.vote = NOBODY
        self.lead = NOBODY
        self.role = FOLLOWER
        self._step_role: Callable[[Raft, Message], None] = follower.step
        self.transferee = NOBODY
        self.pending_change_index = 0
        """A change may be proposed once this index is applied (dissertation, section 4.1)."""
        self.uncommitted_bytes = 0
        self.restored_index = 0
        """The last snapshot that was received: the membership is at least as new as that."""
        self.overtaken_tracker: Tracker | None = None
        """The membership before it, while the state machine is still on its way there."""
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self._randomize_election = settings.election_jitter
        self.election_timeout = 0
        hard_state, configuration = storage.initial_state()
        membership.restore(self.tracker, configuration, last_index=self.log.last_index)
        if hard_state != EMPTY_HARD_STATE:
            self._load(hard_state)
        if settings.applied:
            # Whatever was applied was committed, though the storage may not have synced that yet.
            self.log.commit_to(settings.applied)
            self.log.applied_to(settings.applied, 0)
        self.become_follower(self.term, NOBODY)

    def new_tracker(self) -> Tracker:
        settings = self.settings
        return Tracker(
            settings.inflight_messages_max, inflight_bytes_max=settings.inflight_bytes_max
        )

    def _load(self, state: HardState) -> None:
        if state.commit > self.log.last_index:
            raise InvariantViolated(
                f"stored commit index {state.commit} lies after the last entry, "
                f"{self.log.last_index}: the log was truncated or lost"
            )
        # A commit index alone is not synced, so that it may be older than a snapshot that is.
        self.log.committed = max(self.log.committed, state.commit)
        self.term = state.term
        self.vote = state.vote

    @property
    def promotable(self) -> bool:
        """Whether the node may stand: a voter whose state machine is not being replaced."""
        progress = self.tracker.progress.get(self.id)
        return (
            progress is not None and not progress.is_learner and self.log.unstable.snapshot is None
        )

    # Sending

    def send(self, message: Message) -> None:
        """Queue a message; what promises durability waits for the write before it."""
        kind = message.kind
        if not message.source:
            message.source = self.id
        if IS_VOTE[kind]:
            if not message.term:
                raise InvariantViolated(f"{kind.name} without a term")
        elif message.term:
            raise InvariantViolated(f"{kind.name} with a term of its own")
        elif kind is not _PROPOSE and kind is not _READ_INDEX:
            # Those two are forwarded to the leader as if they were local there.
            message.term = self.term
        if NEEDS_SYNC[kind]:
            # The node itself is a voter like any other: its own vote and its own append count
            # only once they are durable, so both go the same way, addressed to itself.
            self.messages_after_append.append(message)
        elif message.target == self.id:
            raise InvariantViolated(f"{kind.name} to itself")
        else:
            self.messages.append(message)

    # Roles

    def _reset(self, term: int) -> None:
        if self.term != term:
            self.term = term
            self.vote = NOBODY
        self.lead = NOBODY
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        timeout = self.settings.election_ticks
        self.election_timeout = timeout + self._randomize_election(timeout)
        self.transferee = NOBODY
        tracker = self.tracker
        tracker.votes = {}
        last = self.log.last_index
        for node, progress in tracker.progress.items():
            tracker.progress[node] = tracker.new_progress(
                match=last if node == self.id else 0,
                next_index=last + 1,
                is_learner=progress.is_learner,
            )
        self.pending_change_index = 0
        self.uncommitted_bytes = 0
        self.pending_reads = PendingReads()
        self.postponed_reads = []

    def become_follower(self, term: int, lead: int) -> None:
        self._reset(term)
        self.lead = lead
        self.role = FOLLOWER
        self._step_role = follower.step

    def become_candidate(self) -> None:
        if self.role is LEADER:
            raise InvariantViolated("a leader stands for election")
        self._reset(self.term + 1)
        self.vote = self.id
        self.role = CANDIDATE
        self._step_role = election.step_candidate

    def become_precandidate(self) -> None:
        """Ask who would vote, without a new term and without a vote (dissertation, 9.6)."""
        if self.role is LEADER:
            raise InvariantViolated("a leader asks for votes")
        self.tracker.votes = {}
        self.lead = NOBODY
        self.role = PRECANDIDATE
        self._step_role = election.step_candidate

    def become_leader(self) -> None:
        if self.role is FOLLOWER:
            raise InvariantViolated("a follower becomes leader without an election")
        self._reset(self.term)
        self.lead = self.id
        self.role = LEADER
        self._step_role = leader.step
        progress = self.tracker.progress[self.id]
        progress.become_replicate()
        progress.recently_active = True
        # Whatever the log holds may contain a change that is not applied yet: no new one before.
        self.pending_change_index = self.log.last_index
        # An entry of its own term lets the leader commit all before it (Raft, section 8).
        if not self.append_entries([Entry()]):
            raise InvariantViolated("the first entry of a term was refused")

    # Time

    def tick(self) -> None:
        if self.role is LEADER:
            self._tick_leader()
            return
        self.election_elapsed += 1
        if self.election_elapsed >= self.election_timeout and self.promotable:
            self.election_elapsed = 0
            election.stand(self)

    def _tick_leader(self) -> None:
        self.heartbeat_elapsed += 1
        self.election_elapsed += 1
        if self.election_elapsed >= self.settings.election_ticks:
            self.election_elapsed = 0
            if self.settings.check_quorum:
                leader.check_quorum(self)
            # A transfer that took an election timeout has failed: serve proposals again.
            self.transferee = NOBODY
        if self.role is LEADER and self.heartbeat_elapsed >= self.settings.heartbeat_ticks:
            self.heartbeat_elapsed = 0
            leader.broadcast_heartbeat(self)

    # Messages

    def step(self, message: Message) -> None:
        """Deal with terms (Raft, 5.1), then with the message as the role does."""
        term = message.term
        if term != self.term and term and not self._admit(message):
            return
        handler = _COMMON[message.kind]
        if handler is None:
            self._step_role(self, message)
        else:
            handler(self, message)

    def _admit(self, message: Message) -> bool:
        """A message of another term: take the term over, answer an old one, or ignore it."""
        kind = message.kind
        if message.term < self.term:
            self._answer_old_term(message)
            return False
        if kind is MessageKind.VOTE or kind is _PREVOTE:
            if message.context != election.TRANSFER and self.in_lease:
                # Whoever hears from a leader does not help to depose it: a node that was cut off
                # or removed cannot disturb the group (Raft, section 6; dissertation, 4.2.3).
                return False
            if kind is _PREVOTE:
                return True
        if kind is _PREVOTE_RESPONSE and not message.rejected:
            # Granted for the term after this one; the election itself will move the term.
            return True
        self.become_follower(message.term, message.source if FROM_LEADER[kind] else NOBODY)
        return True

    @property
    def in_lease(self) -> bool:
        """Whether a leader was heard from within the shortest election timeout."""
        return (
            self.settings.check_quorum
            and self.lead != NOBODY
            and self.election_elapsed < self.settings.election_ticks
        )

    def _answer_old_term(self, message: Message) -> None:
        kind = message.kind
        if kind is _APPEND or kind is _HEARTBEAT:
            if self.settings.check_quorum or self.settings.prevote:
                # Such a leader cannot be told by this node's own candidacy, which the others
                # would ignore: the answer's term makes it step down (dissertation, 9.6).
                self.send(Message(_APPEND_RESPONSE, message.source))
        elif kind is _PREVOTE:
            # Without an answer, two nodes of different terms could wait for each other.
            self.send(Message(_PREVOTE_RESPONSE, message.source, term=self.term, rejected=True))
        elif kind is _STORAGE_APPEND_RESPONSE and message.snapshot is not None:
            # Entries written in an older term may have been replaced since; a snapshot only
            # holds what is committed and is good in every term.
            self.applied_snapshot(message.snapshot)

    # Log and state machine

    def append_entries(self, entries: list[Entry]) -> bool:
        """Put a leader's entries at the end of its log; false if a limit forbids it."""
        size = payload_bytes(entries)
        if (
            self.uncommitted_bytes
            and size
            and self.uncommitted_bytes + size > self.settings.uncommitted_bytes_max
        ):
            # Empty entries and the first ones always pass, so that the group can go on.
            return False
        self.uncommitted_bytes += size
        index, term = self.log.last_index, self.term
        for entry in entries:
            index += 1
            entry.index = index
            entry.term = term
        self.log.append(entries)
        self.send(Message(_APPEND_RESPONSE, self.id, index=index))
        return True

    def applied_to(self, index: int, size: int) -> None:
        applied = max(index, self.log.applied)
        self.log.applied_to(applied, size)
        if (
            self.tracker.members.auto_leave
            and self.role is LEADER
            and applied >= self.pending_change_index
        ):
            propose_leaving_joint(self)

    def applied_snapshot(self, snapshot: Snapshot) -> None:
        self.log.unstable.stable_snapshot_to(snapshot.index)
        if self.log.unstable.snapshot is None:
            self.overtaken_tracker = None
        self.applied_to(snapshot.index, 0)

    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.log.committed)


def _on_storage_append_response(raft: Raft, message: Message) -> None:
    if message.index:
        raft.log.unstable.stable_to(message.index, term=message.log_term)
    if message.snapshot is not None:
        raft.applied_snapshot(message.snapshot)


def _on_storage_apply_response(raft: Raft, message: Message) -> None:
    entries = message.entries
    size = payload_bytes(entries)
    raft.applied_to(entries[-1].index, size + ENTRY_OVERHEAD_BYTES * len(entries))
    raft.uncommitted_bytes = max(0, raft.uncommitted_bytes - size)


def _on_hup(raft: Raft, _: Message) -> None:
    election.stand(raft)


_handlers: dict[MessageKind, Callable[[Raft, Message], None]] = {
    MessageKind.HUP: _on_hup,
    MessageKind.VOTE: election.on_vote_request,
    MessageKind.PREVOTE: election.on_vote_request,
    MessageKind.STORAGE_APPEND_RESPONSE: _on_storage_append_response,
    MessageKind.STORAGE_APPLY_RESPONSE: _on_storage_apply_response,
}
_COMMON = tuple(_handlers.get(kind) for kind in MessageKind)
"""What is handled alike in every role; the rest goes to the role's own module."""
