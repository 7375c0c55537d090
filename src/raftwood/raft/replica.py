"""One group's replica on this store: core, log, state machine, and the requests that wait.

`Applier` brings committed entries into the state machine, the sessions and the membership. No I/O
here: `engine` takes the work of each turn, writes it, sends it, and reports when it is done.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from raftwood.base.errors import (
    DiskFull,
    InvalidInput,
    InvariantViolated,
    NotLeader,
    OutOfRange,
    Overloaded,
    RaftwoodError,
    Unavailable,
)
from raftwood.base.logs import get_logger
from raftwood.raft.core import (
    NOBODY,
    ConfState,
    Entry,
    EntryKind,
    Message,
    MessageKind,
    ProposalDropped,
    RawNode,
    Ready,
    Role,
    UnknownPeer,
)
from raftwood.raft.core.errors import LocalMessageRefused
from raftwood.raft.core.messages import limit_entries
from raftwood.raft.core.tracker import REPLICATE
from raftwood.raft.entry_format import EncodedRun, LogEntry, RunCache
from raftwood.raft.group_log import GroupStorage
from raftwood.raft.leadership import LogPosition, SlowLeader, VoteFloor
from raftwood.raft.membership import MemberAction, MemberStep
from raftwood.raft.requests import (
    ALREADY_APPLIED,
    LogPlace,
    PendingNames,
    ProposalBatch,
    ProposalDone,
    ProposalMemory,
    Proposals,
    ReadDone,
    Reads,
    batches_of,
    parts_of,
)
from raftwood.raft.sessions import SessionTable, command_name, is_command_name, session_and_sequence
from raftwood.raft.settings import RaftHostSettings
from raftwood.raft.state_machine import NamingMachine, StateMachine

_HEARTBEAT_RESPONSE = MessageKind.HEARTBEAT_RESPONSE
_HEARTBEAT = MessageKind.HEARTBEAT


def is_heartbeat_only(message: Message) -> bool:
    """Whether a message is a heartbeat or its answer, and no part of a read."""
    kind = message.kind
    return (kind is _HEARTBEAT or kind is _HEARTBEAT_RESPONSE) and not message.context


def ends_sleep(message: Message) -> bool:
    """Whether a message ends a sleep; a late answer to a heartbeat does not."""
    return message.kind is not _HEARTBEAT_RESPONSE or bool(message.context)


_NORMAL = EntryKind.NORMAL
_CONTROL = EntryKind.CONTROL

OnChange = Callable[["Applier", Entry], None]
"""A membership change came into force."""


class Applier:
    """The state of a replica after the entries up to `applied`.

    Every replica applies the same entries in the same order and gets the same results: that is all
    that a replicated state machine rests on. Planted bug: "applies out of order"
    """

    __slots__ = (
        "addresses",
        "applied",
        "applied_term",
        "configuration",
        "configuration_index",
        "machine",
        "node",
        "on_change",
        "sessions",
    )

    def __init__(
        self, machine: StateMachine, configuration: ConfState, on_change: OnChange
    ) -> None:
        self.machine = machine
        self.configuration = configuration
        self.configuration_index = 0
        """Index of the last membership change that was applied."""
        self.on_change = on_change
        self.addresses: dict[int, str] = {}
        """Addresses of members, as snapshots and membership changes carry them."""
        self.sessions = SessionTable()
        self.applied = 0
        self.applied_term = 0
        self.node: RawNode | None = None

    def apply(self, entries: list[Entry]) -> Sequence[Any]:
        """Applies entries; returns a result for each, in order."""
        if entries[0].index != self.applied + 1:
            raise InvariantViolated(f"entry {entries[0].index} is applied after {self.applied}")
        results: Sequence[Any]
        for entry in entries:
            if entry.kind is not _NORMAL or not entry.payload:
                results = self._apply_mixed(entries)
                break
        else:
            results = self.machine.update(entries)
        if len(results) != len(entries):
            raise InvariantViolated(
                f"a state machine gave {len(results)} results for {len(entries)} commands"
            )
        last = entries[-1]
        self.applied, self.applied_term = last.index, last.term
        return results

    def _apply_mixed(self, entries: list[Entry]) -> list[Any]:
        """Applies commands between membership changes, those of one stretch in one update."""
        # A change takes force between the entries around it, in the same place on every replica: a
        # snapshot taken at a command must not have a membership from after it.
        results: list[Any] = []
        commands: list[Entry] = []
        for entry in entries:
            if entry.kind is _NORMAL or entry.kind is _CONTROL:
                commands.append(entry)
                continue
            results += self._apply_commands(commands)
            commands = []
            results.append(self._apply_change(entry))
        results += self._apply_commands(commands)
        return results

    def _apply_commands(self, entries: list[Entry]) -> Sequence[Any]:
        if not entries:
            return ()
        commands, plan = self.sessions.prepare(entries)
        results = self.machine.update(commands) if commands else ()
        return self.sessions.finish(plan, results)

    def _apply_change(self, entry: Entry) -> ConfState:
        if self.node is None:
            raise InvariantViolated("a membership change without a node to tell")
        self.configuration = self.node.apply_change(entry)
        self.configuration_index = entry.index
        self.on_change(self, entry)
        return self.configuration


_log = get_logger("raft")
_APPEND = MessageKind.APPEND
_APPEND_RESPONSE = MessageKind.APPEND_RESPONSE
_TIMEOUT_NOW = MessageKind.TIMEOUT_NOW
_PROPOSE = MessageKind.PROPOSE


class Replica:
    """Driven by `RaftEngine`; the host's calls come in between."""

    def __init__(
        self,
        group: int,
        node: RawNode,
        storage: GroupStorage,
        applier: Applier,
        settings: RaftHostSettings,
        *,
        read_prefix: bytes,
        waiting: ProposalMemory,
        on_role: Callable[["Replica"], None],
    ) -> None:
        self.group = group
        self.node = node
        self.storage = storage
        self.applier = applier
        self.settings = settings
        self.book = RunCache()
        self.proposals = Proposals(waiting)
        self._pending = PendingNames()
        machine = applier.machine
        self._naming = machine if isinstance(machine, NamingMachine) else None
        self._waiting = waiting
        self.reads = Reads(read_prefix)
        self._on_role = on_role
        self.is_dirty = False
        self.is_serving = False
        """Restored and replayed: from now on it takes messages, votes and stands."""
        self.is_halted = False
        self.is_fetching = False
        self.is_saving = False
        self.is_verifying = False
        self.is_installing = False
        """A leader's snapshot replaces the state machine's state; reads wait until it is there."""
        self.restoring = asyncio.Lock()
        """Held by the restore of a snapshot: one at a time."""
        self.snapshot_index = 0
        """The newest requested snapshot; the next one comes a number of entries later."""
        self._laggard_ticks = settings.election_ticks
        """Since a follower was seen that lags behind and answers."""
        self.bytes_since_state = 0
        self.backlog: deque[Message] = deque()
        """Writes that the log refused; later ones wait behind them."""
        self.tickets: deque[Ticket] = deque()
        """Writes that are not durable yet, or whose snapshot is not restored yet."""
        self.settling: tuple[tuple[int, ConfState], int] | None = None
        """The term and membership of a removed store's question, and the log's last index then."""
        self.backlog_ticks = 0
        self.has_waited = False
        """Whether its proposals have waited for a write to end."""
        self.has_appended = False
        """Whether entries went out to the followers since the last tick."""
        self.idle_ticks = 0
        self.is_asleep = False
        """The leader has let the group sleep: no ticks, and no store sends to this one."""

        self.only_votes = False
        """Its data is damaged, but for its log's end, its term and its vote (see `repair`)."""
        self.lost_up_to = 0
        """If the log has lost its end: the index up to which this store had acknowledged it."""
        self.vote_floor: VoteFloor | None = None
        """After a crash: the rule that its votes obey until its log is whole again."""

        self.leader_changes = 0
        """How often another store was seen to lead than before."""
        self._last_leader = NOBODY
        self.slow_leader = SlowLeader(
            election_ticks=settings.election_ticks, slow_ms=settings.slow_sync_ms
        )
        self.seen_leader_changes = 0
        """The value at the last tick."""

    # Who leads

    @property
    def leader(self) -> int:
        return self.node.raft.lead

    @property
    def term(self) -> int:
        return self.node.raft.term

    @property
    def is_leader(self) -> bool:
        return self.node.raft.role is Role.LEADER

    @property
    def configuration(self) -> ConfState:
        return self.applier.configuration

    @property
    def applied(self) -> int:
        return self.applier.applied

    @property
    def may_vote(self) -> bool:
        """Whether the replica may vote and stand: its log has all that it ever acknowledged.

        Not while a repaired replica lacks entries that it had helped to commit (decision 0008), nor
        while a store after a crash asks the others what it may have lost (decision 0033). Tests:
        test_repair::test_a_replica_that_lost_its_end_and_votes_loses_what_was_acked,
        test_vote_floor::test_nobody_is_voted_for_before_all_have_answered
        """
        floor, votes_from = self.vote_floor, self.storage.state.votes_from
        reached = self.node.raft.log.committed if self.only_votes else self.applier.applied
        return reached >= votes_from and (floor is None or not floor.is_asking)

    @property
    def last_position(self) -> LogPosition:
        log = self.node.raft.log
        return log.last_term, log.last_index

    def may_elect(self, request: Message) -> bool:
        """Whether to answer a request for a vote, or to stand when the leader asks for it."""
        floor = self.vote_floor
        if floor is None or not self.may_vote:
            return self.may_vote
        if request.kind is _TIMEOUT_NOW:
            return floor.admits(self.last_position)
        return floor.admits((request.log_term, request.index))

    def spend_votes(self, term: int) -> None:
        """Vote for nobody else up to a term: the store may have forgotten votes that it gave.

        A second vote in a term can elect a second leader (Raft, 5.2). A vote for itself uses the
        term up, durably. The replica does not stand in that term; it would in the next. Test:
        test_vote_floor::test_after_a_crash_no_vote_is_given_twice_in_a_term_that_any_voter_knows
        """
        raft = self.node.raft
        if raft.term < term:
            raft.become_follower(term, NOBODY)
        if raft.term and raft.vote == NOBODY:
            raft.vote = raft.id

    @property
    def is_up_to_date(self) -> bool:
        """For a leader: all committed entries are applied, its predecessors' included.

        Until an entry of its own term is applied, a leader does not know which of its predecessors'
        entries are committed (Raft dissertation, section 6.4).
        """
        log = self.node.raft.log
        return self.applied == log.committed and self.applier.applied_term == self.term

    @property
    def must_apply_before_a_change(self) -> bool:
        """Whether a membership change that is proposed now would be refused.

        The core refuses one while another may wait in the log, a predecessor's too. A new leader
        would answer a caller with a conflict for a few milliseconds, so the host waits. Test:
        test_hand_over::
        test_a_leader_changes_members_before_it_has_applied_what_its_predecessor_left
        """
        raft = self.node.raft
        return self.is_leader and raft.log.applied < raft.pending_change_index

    def has_given_up(self, store: int) -> bool:
        """Whether an operator gave a store up when the group lost its quorum.

        Its log may hold entries that the recovered group does not have.
        """
        return store in self.storage.state.given_up

    def check_change(self, steps: Sequence[MemberStep]) -> None:
        """Raises the error if a membership change must be refused at once."""
        if self.storage.state.voters:
            raise Unavailable(f"the members of group {self.group} are being noted: try again")
        for step in steps:
            if self.has_given_up(step.store) and step.action is not MemberAction.REMOVE:
                raise InvalidInput(
                    f"store {step.store} was given up when group {self.group} was recovered: let "
                    "it join with a new number and an empty folder"
                )

    def has_lost(self, heartbeat: Message) -> bool:
        """Whether the leader counts on entries that were acknowledged here and are gone.

        Its heartbeat commits no more than this store acknowledged, so the log has lost its end. The
        core would stop the process; the host has the replica repaired. `LogEnds` mostly learns it
        first, but the heartbeat may come before its answer, and a leader of release 0.1.0 gives
        none. Test:
        test_vote_floor::test_a_leader_that_counts_on_what_is_gone_has_the_replica_repaired_at_once
        """
        raft = self.node.raft
        return heartbeat.term >= raft.term and heartbeat.commit > raft.log.last_index

    def not_leader(self) -> NotLeader:
        leader = self.leader if self.leader != self.node.raft.id else NOBODY
        where = f"store {leader} does" if leader else "there is none at the moment"
        return NotLeader(f"this store does not lead group {self.group}: {where}", leader)

    # In

    def receive(self, message: Message, runs: list[tuple[EncodedRun, list[Entry]]]) -> None:
        """A message of a peer."""
        kind = message.kind
        if kind is _APPEND or kind is _APPEND_RESPONSE or not is_heartbeat_only(message):
            self.idle_ticks = 0
        if self.is_asleep and ends_sleep(message):
            self.is_asleep = False
        for run, entries in runs:
            self.book.remember(run, entries)
        self.step(message)

    def step(self, message: Message) -> None:
        try:
            self.node.step(message)
        except (UnknownPeer, ProposalDropped, LocalMessageRefused) as error:
            _log.debug("message ignored", group=self.group, reason=error.message)

    def propose(self, *batches: ProposalBatch) -> None:
        """Takes batches into the queue; raises why it refuses them, with nothing changed."""
        self._check_takes(sum(batch.size_bytes for batch in batches))
        self.wake()
        for batch in batches:
            self.proposals.add(batch)

    def propose_again(self, entries: list[Entry], done: ProposalDone) -> None:
        """Like `propose`, for commands that any leader may have proposed before.

        Commands that were applied are answered at once, and those in the log are waited for. Only
        the rest is proposed: a client that is not answered in time would else fill a slow disk with
        repetitions (decision 0035). Test:
        test_slow_disk::test_a_session_command_that_is_sent_again_comes_into_the_log_once
        """
        self._check_takes(sum(len(entry.payload) for entry in entries))
        self.wake()
        while self.proposals.queue:
            self.enter_proposals()
        names = [self._name_of(entry) for entry in entries]
        answers = [None if name is None else self._answer_to(name) for name in names]
        log, pending = self.node.raft.log, self._pending
        places = pending.find(names, log, self.term, self._name_of, self._is_refused)
        for position, answer in enumerate(answers):
            if answer is not None:
                places[position] = ALREADY_APPLIED
        bytes_max = self.settings.message_bytes_max
        parts, begins = parts_of(entries, places, bytes_max=bytes_max)
        known = []
        for batch, begin in zip(batches_of(parts, done), begins, strict=True):
            if begin is None:
                self.proposals.add(batch)
            elif begin == ALREADY_APPLIED:
                known.append(batch)
            else:
                self.proposals.joined(batch, begin)
        left = iter([answer for answer in answers if answer is not None])
        for batch in known:
            batch.done([next(left) for _ in batch.entries], None)

    def _name_of(self, entry: Entry) -> bytes | None:
        if entry.kind is EntryKind.CONTROL:
            return command_name(entry.payload)
        if entry.kind is not _NORMAL or self._naming is None:
            return None
        return self._naming.name_of(entry.payload)

    def _is_refused(self, entry: Entry, pending: Mapping[bytes, LogPlace]) -> bool:
        if entry.kind is not _NORMAL or self._naming is None:
            return False
        before = self._naming.name_before(entry.payload)
        is_there = before is None or before in pending or self._answer_to(before) is not None
        return not is_there

    def _answer_to(self, name: bytes) -> Any:
        """The result of a command that was applied; None if it is not known."""
        if is_command_name(name):
            return self.applier.sessions.answer_to(*session_and_sequence(name))
        return None if self._naming is None else self._naming.answer_to(name)

    def may_hold(self, session: int, sequence: int) -> bool:
        """Whether a session's command was applied, or may stand in what another leader has left."""
        is_left = self.applier.applied_term < self.term
        return is_left or self.applier.sessions.answer_to(session, sequence) is not None

    def _check_takes(self, size: int) -> None:
        """Raises the error that refuses proposals now, if any."""
        if not self.is_leader:
            # The client may not have found a leader because it is gone while the group sleeps. A
            # group that is awake notices. Test:
            # test_host::test_a_sleeping_group_whose_leader_was_stopped_wakes_when_a_client_asks
            self.wake()
            raise self.not_leader()
        if self.backlog:
            raise DiskFull(f"the store's disk has no room for group {self.group}: try again later")
        waiting = self.proposals.size_bytes
        if waiting and waiting + size > self.settings.proposal_bytes_max:
            raise Overloaded(
                f"{waiting} bytes wait to be committed in group {self.group}: try again later"
            )
        if self._waiting.size_bytes > self.settings.host_proposal_bytes_max:
            raise Overloaded(
                f"{self._waiting.size_bytes} bytes wait to be committed in all groups of this "
                "store: try again later"
            )

    def read(self, done: ReadDone) -> None:
        if len(self.reads) >= self.settings.reads_waiting_max:
            raise Overloaded(f"{len(self.reads)} reads wait in group {self.group}: try again later")
        raft = self.node.raft
        if self.leader == NOBODY and raft.id not in raft.tracker.progress:
            raise self.not_leader()  # not added yet, or removed: the index may never come
        self.wake()
        self.reads.add(done)

    def wake(self) -> None:
        self.idle_ticks = 0
        self.is_asleep = False

    def is_removed_by(self, *, term: int, applied: int) -> bool:
        """Whether a leader's message that this store is no member covers all that is stored here.

        The store may have been added again since, by a message that overtook this one. Entries that
        it has acknowledged as the new member must not be dropped (decision 0007).
        """
        raft = self.node.raft
        return term >= raft.term and applied >= raft.log.last_index and not self.is_leader

    def tick(self) -> None:
        self.idle_ticks += 1
        if self.has_appended:
            self.has_appended = False
            self._skip_heartbeat()
        self._laggard_ticks = 0 if self._has_laggard() else self._laggard_ticks + 1
        if self.may_vote and (
            self.vote_floor is None or self.vote_floor.admits(self.last_position)
        ):
            self.node.tick()
        else:
            # It would stand, in some old membership that it replays, or with a log cut short. But
            # the leader's lease runs out as ever: others may need this one's vote.
            self.node.raft.election_elapsed += 1
        self.reads.tick(self.settings.election_ticks)
        self.storage.tick()
        if self.only_votes:
            self.storage.cache.shrink(applied=self.node.raft.log.committed, bytes_max=0)

    # Out

    @property
    def has_work(self) -> bool:
        """Whether a turn would find something to do."""
        return (
            self.node.has_ready()
            or self.storage.missed is not None
            or bool(self.reads.waiting)
            or bool(self.proposals.queue)
        )

    def enter_proposals(self) -> None:
        """Gives the waiting batches to the core, as one run of entries."""
        batches = self.proposals.take_queue(self.settings.message_bytes_max)
        if len(batches) == 1:
            # A copy: the core may put an empty entry in the place of a change that does not fit.
            entries = list(batches[0].entries)
        else:
            entries = [entry for batch in batches for entry in batch.entries]
        try:
            self.node.step(Message(_PROPOSE, source=self.node.raft.id, entries=entries))
        except ProposalDropped as error:
            refusal: RaftwoodError = error if self.is_leader else self.not_leader()
            self.proposals.refuse(batches, refusal)
            return
        position = 0
        for batch in batches:
            batch.first_index, batch.term = entries[position].index, entries[position].term
            position += len(batch.entries)
        self.has_appended = True
        self.proposals.entered_log(batches)

    def begin_reads(self) -> None:
        if self.leader == NOBODY:
            return  # the round begins with the first tick after an election
        context = self.reads.next_round()
        if context is not None:
            self.node.read_index(context)

    def take_ready(self) -> Ready:
        ready = self.node.ready()
        if ready.soft_state is not None:
            if not self.is_leader and self.proposals.queue:
                self.proposals.refuse_queue(self.not_leader())
            if self.leader not in (NOBODY, self._last_leader):
                self._last_leader = self.leader
                self.leader_changes += 1
            self._on_role(self)
        if ready.read_states:
            for state in ready.read_states:
                self.reads.confirmed(state.context, state.index)
            if not self.is_installing:
                self.reads.applied(self.applied)
        return ready

    def apply(self, message: Message) -> None:
        """Work of the apply thread: committed entries, in order."""
        entries = message.entries
        applier, cache = self.applier, self.storage.cache
        results = applier.apply(entries)
        if self.proposals.in_log:
            self.proposals.applied(entries, results)
        self.node.step(message.responses[0])
        self.reads.applied(applier.applied)
        bytes_max = self.cache_bytes_max
        if cache.size_bytes > bytes_max:
            cache.shrink(applied=applier.applied, bytes_max=bytes_max)

    def best_follower(self, among: Collection[int] | None = None) -> int:
        """The voter to hand over to: the active one with most of the log; 0 for none.

        The one that lags least is brought up to date soonest, and no proposals are taken meanwhile.
        """
        raft = self.node.raft
        best, best_match = NOBODY, -1
        for node, progress in raft.tracker.progress.items():
            if among is not None and node not in among:
                continue
            is_fit = node != raft.id and not progress.is_learner and progress.recently_active
            if is_fit and progress.match > best_match:
                best, best_match = node, progress.match
        return best

    async def committed(self, first_index: int, bytes_max: int) -> tuple[list[LogEntry], int]:
        """Applied entries from an index on, one at least, and the index after them."""
        head = self.storage.first_index()
        if not head <= first_index <= self.applied + 1:
            raise OutOfRange(
                f"group {self.group} holds entries {head} to {self.applied} here, not {first_index}"
            )
        if first_index > self.applied:
            return [], first_index
        if first_index >= self.storage.cache.first_index:
            cached = self.storage.cache.slice(first_index, self.applied + 1)
            limited = limit_entries(cached, bytes_max)
            found = [LogEntry(each.index, each.term, each.kind, each.payload) for each in limited]
            return found, found[-1].index + 1
        entries = await self.storage.view(first_index, bytes_max)
        found = [each for each in entries if first_index <= each.index <= self.applied]
        return found, found[-1].index + 1

    @property
    def is_waited_for(self) -> bool:
        """For a leader: whether a snapshot now would cut off what a follower is about to get."""
        return self._laggard_ticks < self.settings.election_ticks

    def _has_laggard(self) -> bool:
        raft = self.node.raft
        kept_after = self.applied - self.settings.snapshot_entries_kept
        return raft.role is Role.LEADER and any(
            progress.recently_active and progress.match < kept_after
            for progress in raft.tracker.progress.values()
        )

    def _skip_heartbeat(self) -> None:
        """Leave out the next heartbeat: appends since the last tick stand for it (Raft, 5.2).

        A follower that is not in the flow of appends needs the heartbeat: its answer resumes it.
        """
        raft = self.node.raft
        if raft.role is Role.LEADER and all(
            progress.state is REPLICATE and not progress.flow_paused
            for progress in raft.tracker.progress.values()
        ):
            raft.heartbeat_elapsed = -raft.settings.heartbeat_ticks

    def refuse_all(self, error: RaftwoodError) -> None:
        self.proposals.refuse_all(error)
        self.reads.refuse_all(error)

    @property
    def cache_bytes_max(self) -> int:
        """This group's share of the memory for entries that may be asked for again."""
        settings = self.settings
        share = settings.host_entry_cache_bytes_max // (len(self._waiting.running) or 1)
        return min(settings.entry_cache_bytes_max, share)

    def sleep(self) -> None:
        """Puts the replica to sleep. All members have all entries: none need be kept in memory."""
        self.is_asleep = True
        self.storage.cache.shrink(applied=self.applier.applied, bytes_max=0)

    def halt(self) -> None:
        self.is_serving = False
        self.is_halted = True


class Ticket:
    """Messages of one replica that wait for a write, in order."""

    __slots__ = ("is_done", "responses", "snapshot")

    def __init__(self, responses: list[Message], snapshot: Any) -> None:
        self.responses = responses
        self.snapshot = snapshot
        self.is_done = False
