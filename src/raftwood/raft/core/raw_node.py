"""`RawNode`, the interface to one raft node: calls and messages in, `Ready` out.

`Ready` is the work that a node asks its host to do, `Status` a copy of its state for display. The
package's documentation lists the host's duties, in order.
"""

import msgspec

from raftwood.base.errors import InvariantViolated
from raftwood.raft.core import reconfiguration
from raftwood.raft.core.errors import LocalMessageRefused, UnknownPeer
from raftwood.raft.core.membership import Change, change_entry
from raftwood.raft.core.messages import (
    APPEND_THREAD,
    APPLY_THREAD,
    EMPTY_HARD_STATE,
    IS_LOCAL,
    IS_RESPONSE,
    LEADER,
    NO_ENTRIES,
    ConfState,
    Entry,
    EntryKind,
    HardState,
    Message,
    MessageKind,
    Role,
    Snapshot,
    entries_bytes,
)
from raftwood.raft.core.raft import Raft
from raftwood.raft.core.reads import ReadState
from raftwood.raft.core.settings import RaftSettings
from raftwood.raft.core.storage import Storage
from raftwood.raft.core.tracker import Progress, ProgressState


class SoftState(msgspec.Struct, frozen=True):
    """The known leader and this node's role: of interest to the host, never stored."""

    lead: int
    role: Role


class Ready(msgspec.Struct):
    """Work for the host, in the order of the fields.

    With asynchronous storage writes only `messages`, `soft_state` and `read_states` ask for
    something: the messages to the storage threads hold the rest, which is here to look at.
    """

    soft_state: SoftState | None
    """Set if it changed."""
    hard_state: HardState | None
    """Set if it changed: to be stored together with the entries, before the messages go."""
    read_states: list[ReadState]
    entries: list[Entry]
    """To be stored, over whatever stands at and after the first of them."""
    snapshot: Snapshot | None
    """To be stored and restored before anything is applied; it replaces the log."""
    committed_entries: list[Entry]
    """To be applied, in order."""
    messages: list[Message]
    """To be sent after the above is durable."""
    must_sync: bool
    """Whether entries, term or vote are to be synced. A snapshot always is, which the host sees to.

    A commit index alone is not: it is learnt again from the leader, and entries that were applied
    count as committed at a restart.
    """


class FollowerStatus(msgspec.Struct, frozen=True):
    """One member as the leader knows it."""

    state: ProgressState
    match: int
    next: int
    is_learner: bool
    paused: bool
    pending_snapshot: int
    recently_active: bool
    inflight_messages: int
    inflight_full: bool


class Status(msgspec.Struct, frozen=True):
    """One node; `progress` is empty unless it leads."""

    node: int
    role: Role
    lead: int
    hard_state: HardState
    applied: int
    last_index: int
    transferee: int
    configuration: ConfState
    progress: dict[int, FollowerStatus]


def status_of(raft: "Raft") -> Status:
    progress = {}
    if raft.role is LEADER:
        progress = {node: follower_status(item) for node, item in raft.tracker.progress.items()}
    return Status(
        raft.id,
        raft.role,
        raft.lead,
        raft.hard_state(),
        raft.log.applied,
        raft.log.last_index,
        raft.transferee,
        raft.tracker.members.conf_state(),
        progress,
    )


def follower_status(progress: Progress) -> FollowerStatus:
    return FollowerStatus(
        progress.state,
        progress.match,
        progress.next,
        progress.is_learner,
        progress.paused,
        progress.pending_snapshot,
        progress.recently_active,
        len(progress.inflights),
        progress.inflights.full,
    )


class RawNode:
    """One node. Not safe for threads; nothing here blocks or reads a clock."""

    __slots__ = ("_async_writes", "_hard_state", "_lead", "_on_advance", "_role", "raft")

    def __init__(self, settings: RaftSettings, storage: Storage) -> None:
        self.raft = Raft(settings, storage)
        """The node's state, for tests and status; hosts do not change it."""
        self._async_writes = settings.async_storage_writes
        self._lead, self._role = self.raft.lead, self.raft.role
        self._hard_state = self.raft.hard_state()
        self._on_advance: list[Message] = []

    # In

    def tick(self) -> None:
        """One tick of time has passed."""
        self.raft.tick()

    def step(self, message: Message) -> None:
        """Take a message from a peer or from a storage thread.

        Raises `LocalMessageRefused` for what a peer must not send, `UnknownPeer` for answers of a
        node that was removed, itself included, and `ProposalDropped` for a forwarded proposal that
        found no leader: all three may be ignored.
        """
        kind = message.kind
        source = message.source
        if source < APPLY_THREAD:  # else it comes from a storage thread
            # A peer that could say "your entries are durable" or "stand for election" would bypass
            # every promise. Test: test_raw_node::test_a_peer_cannot_send_what_never_leaves_a_node
            if IS_LOCAL[kind]:
                raise LocalMessageRefused(f"{kind.name} from node {source} is a local message")
            # An answer of a node that was removed meanwhile: the leader keeps no progress for it.
            # Requests pass, for a node may be a member before this one has applied the change.
            # Test: test_raw_node::test_an_answer_of_a_stranger_is_refused
            if IS_RESPONSE[kind] and source not in self.raft.tracker.progress:
                raise UnknownPeer(f"{kind.name} from node {source}, which is no member")
        self.raft.step(message)

    def propose(self, payloads: list[bytes], kind: EntryKind = EntryKind.NORMAL) -> None:
        """Append payloads, an entry each; raises `ProposalDropped` if nothing was appended.

        They may still get lost before they are committed: only applying them shows success.
        """
        entries = [Entry(kind=kind, payload=payload) for payload in payloads]
        self.raft.step(Message(MessageKind.PROPOSE, source=self.raft.id, entries=entries))

    def propose_change(self, change: Change) -> None:
        """Propose a membership change; one that does not fit is committed as an empty entry."""
        entries = [change_entry(change)]
        self.raft.step(Message(MessageKind.PROPOSE, source=self.raft.id, entries=entries))

    def apply_change(self, entry: Entry) -> ConfState:
        """Apply a membership change's entry; returns the membership, to be kept in snapshots."""
        return reconfiguration.apply_change(self.raft, entry)

    def campaign(self) -> None:
        """Stand for election now."""
        self.raft.step(Message(MessageKind.HUP))

    def read_index(self, context: bytes) -> None:
        """Ask for an index to read at.

        A `ReadState` with the same context answers. None may come: the request or its answer may be
        lost, or the leader deposed, so the caller asks again after a while.
        """
        self.raft.step(Message(MessageKind.READ_INDEX, context=context))

    def transfer_leadership(self, target: int) -> None:
        """Let another voter take over; it has an election timeout to do so."""
        self.raft.step(Message(MessageKind.TRANSFER_LEADER, source=target))

    def forget_leader(self) -> None:
        """Vote as if there were no leader, until the leader's next message (decision 0010)."""
        self.raft.step(Message(MessageKind.FORGET_LEADER))

    def report_unreachable(self, node: int) -> None:
        """The transport lost messages to a node."""
        self.raft.step(Message(MessageKind.UNREACHABLE, source=node))

    def report_snapshot(self, node: int, *, failed: bool) -> None:
        """The transport has sent a snapshot to a node, or given up."""
        self.raft.step(Message(MessageKind.SNAPSHOT_STATUS, source=node, rejected=failed))

    # Out

    def has_ready(self) -> bool:
        """Whether `ready` would hand out anything."""
        raft = self.raft
        if raft.messages or raft.messages_after_append or raft.read_states:
            return True
        log, known = raft.log, self._hard_state
        unstable = log.unstable
        # All but the last two are looked up without a call: this is asked after every message.
        return (
            unstable.offset_in_progress - unstable.offset < len(unstable.entries)
            or (unstable.snapshot is not None and not unstable.snapshot_in_progress)
            or raft.lead != self._lead
            or raft.role is not self._role
            or (
                (
                    log.committed != known.commit
                    or raft.term != known.term
                    or raft.vote != known.vote
                )
                and self._new_hard_state() is not None
            )
            or (
                log.applying < log.committed
                and log.has_next_committed(allow_unstable=not self._async_writes)
            )
        )

    def _new_hard_state(self) -> HardState | None:
        raft, known = self.raft, self._hard_state
        if (
            raft.log.committed == known.commit
            and raft.term == known.term
            and raft.vote == known.vote
        ):
            return None
        state = raft.hard_state()
        return None if state == EMPTY_HARD_STATE else state

    def ready(self) -> Ready:
        """Hand out all work there is.

        `advance` comes before the next call, unless writes are asynchronous.
        """
        raft, log = self.raft, self.raft.log
        allow_unstable = not self._async_writes
        unstable = log.unstable
        entries = committed = NO_ENTRIES
        # Each entry is handed out once, unless it was replaced: the storage would else write again
        # what is under way already.
        if unstable.offset_in_progress - unstable.offset < len(unstable.entries):
            entries = unstable.next_entries()
        if log.applying < log.committed:
            committed = log.next_committed(allow_unstable=allow_unstable)
        hard_state = self._new_hard_state()
        # Term and vote must be durable before an answer leaves that relies on them (Raft, figure
        # 2): planted bugs "term not durable" and "vote not durable".
        must_sync = bool(entries)
        if hard_state is not None and not must_sync:
            known = self._hard_state
            must_sync = hard_state.term != known.term or hard_state.vote != known.vote
        soft_state = None
        if raft.lead != self._lead or raft.role is not self._role:
            soft_state = SoftState(raft.lead, raft.role)
            self._lead, self._role = raft.lead, raft.role
        ready = Ready(
            soft_state,
            hard_state,
            raft.read_states,
            entries,
            unstable.next_snapshot(),
            committed,
            raft.messages,
            must_sync,
        )
        self._hand_over(ready)
        raft.read_states = []
        raft.messages = []
        raft.messages_after_append = []
        if hard_state is not None:
            self._hard_state = hard_state
        unstable.accept_in_progress()
        if committed:
            log.accept_applying(
                committed[-1].index, entries_bytes(committed), allow_unstable=allow_unstable
            )
        return ready

    def _hand_over(self, ready: Ready) -> None:
        """Give the messages that wait for storage to its threads, or keep them for `advance`."""
        raft = self.raft
        after_append = raft.messages_after_append
        if self._async_writes:
            # Even without anything to write: an answer may repeat a promise whose write is still
            # under way, and the append thread's order makes it wait for that. Our hosts keep the
            # same order: planted bug "answers out of order" in `tests/kits/raft/hosts/mutants.py`.
            if ready.entries or ready.hard_state or ready.snapshot or after_append:
                ready.messages.append(self._storage_append(ready))
            if ready.committed_entries:
                ready.messages.append(self._storage_apply(ready))
            return
        if self._on_advance:
            raise InvariantViolated("the last Ready has not been advanced")
        # The host persists before it sends, so answers to peers may leave with the other messages.
        # Those to this node itself are counted in `advance`, when the host says that it is done.
        for message in after_append:
            if message.target == raft.id:
                self._on_advance.append(message)
            else:
                ready.messages.append(message)
        response = self._append_response(ready)
        if response is not None:
            self._on_advance.append(response)
        if ready.committed_entries:
            self._on_advance.append(self._apply_response(ready))

    def advance(self) -> None:
        """The host has stored, sent and applied the last `Ready`."""
        if self._async_writes:
            raise InvariantViolated("advance has no meaning with asynchronous storage writes")
        steps, self._on_advance = self._on_advance, []
        for message in steps:
            self.raft.step(message)

    # Storage threads

    def _storage_append(self, ready: Ready) -> Message:
        raft = self.raft
        message = Message(
            MessageKind.STORAGE_APPEND,
            APPEND_THREAD,
            raft.id,
            entries=ready.entries,
            snapshot=ready.snapshot,
            responses=raft.messages_after_append,
        )
        state = ready.hard_state
        if state is not None:
            # All three or none: the message has no other sign that there is a new hard state.
            message.term, message.vote, message.commit = state.term, state.vote, state.commit
        response = self._append_response(ready)
        if response is not None:
            message.responses.append(response)
        return message

    def _append_response(self, ready: Ready) -> Message | None:
        """The message that tells this node that entries are durable; None if none are under way.

        It carries the term in which it was made, and a node of a later term drops it. Suppose entry
        5 of term 1 is being written, a leader of term 2 replaces it, and a third leader that has
        the old entry 5 of term 1 brings it back. The answer to the first write fits the entry that
        the log has now. Were it counted, the entry would leave memory while the storage holds the
        one of term 2, and the log would be read with that. Entries that are still good are
        confirmed by the next response. Script: async_replaced_entries.txt. Test:
        test_raw_node::test_an_entry_that_came_back_is_durable_only_by_its_last_write
        """
        raft = self.raft
        unstable = raft.log.unstable.entries
        # Also with nothing new to write: the entries may have been handed out in an earlier term,
        # whose answer was dropped, and this response confirms them.
        if not unstable and ready.snapshot is None:
            return None
        response = Message(
            MessageKind.STORAGE_APPEND_RESPONSE,
            raft.id,
            APPEND_THREAD,
            term=raft.term,
            snapshot=ready.snapshot,
        )
        if unstable:
            response.index, response.log_term = unstable[-1].index, unstable[-1].term
        return response

    def _storage_apply(self, ready: Ready) -> Message:
        return Message(
            MessageKind.STORAGE_APPLY,
            APPLY_THREAD,
            self.raft.id,
            entries=ready.committed_entries,
            responses=[self._apply_response(ready)],
        )

    def _apply_response(self, ready: Ready) -> Message:
        return Message(
            MessageKind.STORAGE_APPLY_RESPONSE,
            self.raft.id,
            APPLY_THREAD,
            entries=ready.committed_entries,
        )

    # Questions

    def status(self) -> Status:
        return status_of(self.raft)
