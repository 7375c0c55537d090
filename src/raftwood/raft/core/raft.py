"""The state of one raft node and the rules that hold in every role.

`step` takes a message, `tick` advances the clock. Messages to send gather in `messages`, and in
`messages_after_append` if they promise durability; `RawNode` hands out both. Terms are compared
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
        """Payload bytes of this leader's entries that are not applied yet."""
        self.restored_index = 0
        """Index of the last snapshot received; the membership in force is at least that new."""
        self.overtaken_tracker: Tracker | None = None
        """The membership before that snapshot, until the snapshot is durable."""
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self._randomize_election = settings.election_jitter
        self.election_timeout = 0
        hard_state, configuration = storage.initial_state()
        membership.restore(self.tracker, configuration, last_index=self.log.last_index)
        if hard_state != EMPTY_HARD_STATE:
            self._load(hard_state)
        if settings.applied:
            # An applied entry was committed, but a commit index alone is not synced, so the stored
            # one may be older. Without this a restart would find `applied` above `committed` and
            # stop. Test:
            # test_raw_node::test_a_restart_goes_on_where_storage_and_state_machine_stand
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
            # Entries that this node acknowledged are gone, and a quorum may count on them. With a
            # vote by this shorter log, a node that lacks them could lead, and would overwrite
            # entries that clients were told are committed (Raft, 5.4.3). So it does not start.
            raise InvariantViolated(
                f"stored commit index {state.commit} lies after the last entry, "
                f"{self.log.last_index}: the log was truncated or lost"
            )
        # The snapshot is synced and the commit index alone is not, so after a crash the stored
        # commit index may be older than the snapshot. What a snapshot holds is committed.
        self.log.committed = max(self.log.committed, state.commit)
        self.term = state.term
        self.vote = state.vote

    @property
    def promotable(self) -> bool:
        """Whether the node may stand: a voter whose state machine is not being replaced."""
        # A learner must not stand: it is caught up without a vote, so that adding a slow node does
        # not hold up commits (dissertation, section 4.2.1), and its vote for itself would count for
        # nothing. The script learner_promotion.txt shows it.
        # A node that waits for its snapshot to be durable cannot apply an entry or serve a read. As
        # a leader it would stop the group until then; another voter can lead at once.
        progress = self.tracker.progress.get(self.id)
        return (
            progress is not None and not progress.is_learner and self.log.unstable.snapshot is None
        )

    # Sending

    def send(self, message: Message) -> None:
        """Queue a message; one that promises durability waits for the write before it."""
        kind = message.kind
        if not message.source:
            message.source = self.id
        if IS_VOTE[kind]:
            # A pre-vote asks about the term after this node's, and its answer repeats that term:
            # only the code that makes the message knows which one is meant.
            if not message.term:
                raise InvariantViolated(f"{kind.name} without a term")
        elif message.term:
            raise InvariantViolated(f"{kind.name} with a term of its own")
        elif kind is not _PROPOSE and kind is not _READ_INDEX:
            # These two go to the leader as if a client had asked there. With the follower's term on
            # them, a leader that was elected again meanwhile would ignore them as out of date.
            message.term = self.term
        if NEEDS_SYNC[kind]:
            # The answer may leave only when the term, vote and entries behind it are synced (Raft,
            # figure 2). Else a node that crashes after its answer votes a second time in the same
            # term, and two leaders are elected; or it forgets an entry that the leader has counted
            # and committed. The node's own vote and append count under the same rule, so both are
            # sent to itself. Planted bugs: "vote not durable", "acknowledged before durable". Test:
            # test_raw_node::test_a_leader_counts_itself_only_once_its_write_is_durable
            self.messages_after_append.append(message)
        elif message.target == self.id:
            raise InvariantViolated(f"{kind.name} to itself")
        else:
            self.messages.append(message)

    # Roles

    def _reset(self, term: int) -> None:
        # The vote is forgotten with its term and not before (Raft, 5.2): a candidate that hears of
        # its defeat becomes a follower in the same term. If it gave up its vote for itself, it
        # could vote once more, and a second leader of the term would have its majority. Script:
        # election.txt, where two candidates refuse each other
        if self.term != term:
            self.term = term
            self.vote = NOBODY
        self.lead = NOBODY
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        # Drawn anew each time (Raft, 5.2): nodes with equal timeouts that split the vote once would
        # stand together again, and split it again.
        # Test: test_raw_node::test_each_election_timeout_has_its_own_jitter
        timeout = self.settings.election_ticks
        self.election_timeout = timeout + self._randomize_election(timeout)
        self.transferee = NOBODY
        tracker = self.tracker
        tracker.votes = {}
        last = self.log.last_index
        # A new leader knows nothing of the others' logs: it assumes that they are as long as its
        # own, and learns from refusals where they differ (Raft, 5.3). What was known in an earlier
        # term must not stay, because other leaders may have replaced those entries since.
        # Its own match may run ahead of its disk here. That commits nothing too early: only an
        # entry of the new term commits (`RaftLog.try_commit`), it lies behind all of these, and
        # this node acknowledges it when everything before it is durable.
        for node, progress in tracker.progress.items():
            tracker.progress[node] = tracker.new_progress(
                match=last if node == self.id else 0,
                next_index=last + 1,
                is_learner=progress.is_learner,
            )
        self.pending_change_index = 0
        self.uncommitted_bytes = 0
        # Reads belong to one term of office. Suppose a leader was deposed, took a read before it
        # heard of that, and leads again later. Its heartbeats would have the old read confirmed, at
        # an index from before what the leader between them committed.
        # Test: test_raw_node::test_a_read_ends_with_its_leaders_term_of_office
        self.pending_reads = PendingReads()
        self.postponed_reads = []

    def become_follower(self, term: int, lead: int) -> None:
        """Follow a leader, or wait for one if `lead` is `NOBODY`."""
        self._reset(term)
        self.lead = lead
        self.role = FOLLOWER
        self._step_role = follower.step

    def become_candidate(self) -> None:
        """Open the next term with a vote for this node itself (Raft, 5.2)."""
        if self.role is LEADER:
            raise InvariantViolated("a leader stands for election")
        self._reset(self.term + 1)
        self.vote = self.id
        self.role = CANDIDATE
        self._step_role = election.step_candidate

    def become_precandidate(self) -> None:
        """Ask who would vote, without a new term and without a vote (dissertation, 9.6).

        A node that is cut off would raise its term at each timeout. When it is back, its high term
        deposes a healthy leader, though the node's log is too old to win. Script: prevote.txt
        """
        if self.role is LEADER:
            raise InvariantViolated("a leader asks for votes")
        self.tracker.votes = {}
        self.lead = NOBODY
        self.role = PRECANDIDATE
        self._step_role = election.step_candidate

    def become_leader(self) -> None:
        """Take office: nothing is known of the followers, and the term gets its first entry."""
        if self.role is FOLLOWER:
            raise InvariantViolated("a follower becomes leader without an election")
        self._reset(self.term)
        self.lead = self.id
        self.role = LEADER
        self._step_role = leader.step
        progress = self.tracker.progress[self.id]
        progress.become_replicate()
        progress.recently_active = True
        # The log may hold a predecessor's change that this node has not applied. A second change
        # beside it could make two majorities that do not overlap (dissertation, section 4.1). To
        # look for one would mean to read the log: waiting for all of it is simpler, and short.
        # Without this rule the model in `tests/kits/raft/model` has a new leader leave a joint
        # configuration that its predecessor's last entry leaves, and every replica stops there.
        # Test: test_raw_node::
        # test_a_new_leader_applies_what_its_predecessor_left_before_it_proposes_a_change
        self.pending_change_index = self.log.last_index
        # A leader may commit entries of earlier terms only by committing one of its own term (Raft,
        # 5.4.2 and section 8). In a group without clients, what the predecessor left would stay
        # uncommitted, and reads and changes would wait for ever. Script: commit_of_old_term.txt
        if not self.append_entries([Entry()]):
            raise InvariantViolated("the first entry of a term was refused")

    # Time

    def tick(self) -> None:
        """Advance the clock by one tick; a follower that hears nothing for too long stands."""
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
            # A transfer that took an election timeout has failed (dissertation, section 3.10): the
            # target may be dead, and this leader has refused proposals since. Script: transfer.txt
            self.transferee = NOBODY
        # Asked again: the quorum check may have ended this node's term of office.
        if self.role is LEADER and self.heartbeat_elapsed >= self.settings.heartbeat_ticks:
            self.heartbeat_elapsed = 0
            leader.broadcast_heartbeat(self)

    # Messages

    def step(self, message: Message) -> None:
        """Compare terms (Raft, 5.1), then handle the message as the role does."""
        # Term zero marks what has no term: local messages, and requests that were forwarded.
        term = message.term
        if term != self.term and term and not self._admit(message):
            return
        handler = _COMMON[message.kind]
        if handler is None:
            self._step_role(self, message)
        else:
            handler(self, message)

    def _admit(self, message: Message) -> bool:
        """A message of another term: adopts a newer term, answers an old one, or ignores it.

        Returns whether the message is to be handled further.
        """
        kind = message.kind
        if message.term < self.term:
            # Never handled further. An append of a deposed leader would cut entries that the newer
            # leader has counted; an old vote or acknowledgement would count in a term that it was
            # not given in.
            self._answer_old_term(message)
            return False
        if kind is MessageKind.VOTE or kind is _PREVOTE:
            if message.context != election.TRANSFER and self.in_lease:
                # A node that hears a leader ignores requests for votes (Raft, section 6;
                # dissertation, 4.2.3). A removed node gets no heartbeats, so it stands again and
                # again with ever higher terms; each term that the others took over would depose
                # their leader. The request that the leader ordered itself (3.10) passes: without
                # that, a transfer waits for the lease to end. Scripts: prevote.txt, transfer.txt
                return False
            if kind is _PREVOTE:
                # The term that it asks about has not begun, and may never begin (9.6). To adopt it
                # would depose the leader, which is what pre-votes are to avoid.
                # The script forget_leader.txt shows it.
                return True
        if kind is _PREVOTE_RESPONSE and not message.rejected:
            # Granted for the term after this one, which begins only if a majority grants it. A
            # refusal has the refuser's own term: if that is higher, this node is behind, and adopts
            # it below. Script: prevote.txt
            return True
        # A newer term ends this node's role (Raft, 5.1). Only a leader's message tells who leads: a
        # candidate of the term may still lose.
        self.become_follower(message.term, message.source if FROM_LEADER[kind] else NOBODY)
        return True

    @property
    def in_lease(self) -> bool:
        """Whether a leader was heard from within the shortest election timeout.

        The timeout without its random part: no follower may stand before, and on that a lease read
        relies (dissertation, section 6.4.1). A leader is in its own lease until `check_quorum`
        deposes it, which is why the rule needs that setting: a leader that lost its followers would
        refuse to make way for ever.
        """
        return (
            self.settings.check_quorum
            and self.lead != NOBODY
            and self.election_elapsed < self.settings.election_ticks
        )

    def _answer_old_term(self, message: Message) -> None:
        kind = message.kind
        if kind is _APPEND or kind is _HEARTBEAT:
            if self.settings.check_quorum or self.settings.prevote:
                # This node has a higher term than a leader that the others follow; it was cut off
                # and stood, say. It ignores that leader's messages, and the others ignore its
                # candidacy because they hear the leader: it would be shut out for ever. The answer
                # has its term, the leader steps down, and the next election is in a term that all
                # can take part in (dissertation, 9.6). Without the two settings its candidacy has
                # the same effect. Test: test_raw_node::
                # test_a_leader_of_an_old_term_is_told_the_new_one_where_nobody_else_would
                self.send(Message(_APPEND_RESPONSE, message.source))
        elif kind is _PREVOTE:
            # Suppose the asker has the longer log and this node the higher term. The asker refuses
            # this node for its short log; were it ignored here, neither could win, and nobody would
            # tell the asker of the term that it needs.
            # Test: test_raw_node::test_a_prevote_of_an_old_term_is_told_the_new_one
            self.send(Message(_PREVOTE_RESPONSE, message.source, term=self.term, rejected=True))
        elif kind is _STORAGE_APPEND_RESPONSE and message.snapshot is not None:
            # The answer for entries of an older term is dropped: see `RawNode._append_response`. A
            # snapshot holds committed entries alone, so it is good in every term; to drop it would
            # leave the node waiting for a snapshot that it has.
            # Test: test_raw_node::test_a_snapshot_written_in_an_old_term_still_counts
            self.applied_snapshot(message.snapshot)

    # Log and state machine

    def append_entries(self, entries: list[Entry]) -> bool:
        """Append entries to the leader's log; false if a limit forbids it."""
        # A leader that cannot reach a quorum still takes proposals. Without a bound they would fill
        # its memory. Tests: test_raw_node::test_uncommitted_bytes_are_bounded_and_given_back,
        # test_what_is_larger_than_the_bound_passes_alone_and_empty_entries_pass_it
        size = payload_bytes(entries)
        if (
            self.uncommitted_bytes
            and size
            and self.uncommitted_bytes + size > self.settings.uncommitted_bytes_max
        ):
            # Entries always pass while nothing waits, or one larger than the limit could never be
            # proposed. Empty ones always pass, or a full backlog would keep a leader from leaving a
            # joint configuration.
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
        """Note how far the state machine is, and leave a joint configuration if it is time."""
        applied = max(index, self.log.applied)
        self.log.applied_to(applied, size)
        # The leader leaves the joint configuration itself (dissertation, section 4.3), because the
        # client that asked for the change may be gone, and a group that stays joint needs two
        # majorities for everything. The change must be applied first, here and by entry order on
        # every other node, so that nobody goes from the old configuration to the new one directly.
        # A leader that dies in between is no harm: its successor applies entries too, and comes
        # here. Test:
        # test_raw_node::test_a_leader_leaves_a_joint_configuration_once_it_has_applied_it
        if (
            self.tracker.members.auto_leave
            and self.role is LEADER
            and applied >= self.pending_change_index
        ):
            propose_leaving_joint(self)

    def applied_snapshot(self, snapshot: Snapshot) -> None:
        """A received snapshot is durable and restored."""
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
    # Payload counts as uncommitted until it is applied: a state machine that cannot keep up slows
    # proposals down too. Never below zero: entries of an earlier term of office are not counted.
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
"""Handlers of the kinds that every role treats alike; the role's own module has the rest."""
