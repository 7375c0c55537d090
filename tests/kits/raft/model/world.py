"""The events of a run: messages, ticks, clients, changes of membership, crashes, partitions."""

import random
from collections import deque
from dataclasses import dataclass
from typing import Self

from raftwood.raft.core import (
    ChangeStep,
    ChangeV1,
    ChangeV2,
    ConfState,
    Entry,
    LocalMessageRefused,
    Message,
    MessageKind,
    ProgressState,
    ProposalDropped,
    RaftSettings,
    Role,
    Snapshot,
    StepKind,
    Transition,
    UnknownPeer,
)
from tests.kits.models import Violation, repeatable
from tests.kits.raft.model.oracle import Oracle
from tests.kits.raft.model.replica import Replica

_INBOX_MAX = 400
_IDS_MAX = 7
_COMPARE_EVERY = 2048
_SETTLE_ROUNDS = 2000
_PROPOSE = MessageKind.PROPOSE


@dataclass(frozen=True)
class Profile:
    """What one run is like: sizes, settings, and how likely each fault is when its turn comes."""

    nodes: int
    async_writes: bool
    prevote: bool
    check_quorum: bool
    learners: int
    changes: bool
    window: int
    message_bytes: int
    applying_bytes: int
    drop: float
    duplicate: float
    reorder: float
    crash: float
    partition: float
    compact: float
    contest: float
    """How often a client tells a node to stand for election."""
    restart: float
    delay_ready: float
    """How often a node's work waits, so that a crash loses it."""

    @classmethod
    def choose(cls, seed: int) -> Self:
        source = random.Random(f"raft model {seed}")
        protected = source.random() < 0.5
        faulty = source.random() < 0.85
        return cls(
            nodes=source.choice((3, 3, 3, 5, 5)),
            async_writes=source.random() < 0.5,
            prevote=protected or source.random() < 0.3,
            check_quorum=protected or source.random() < 0.3,
            learners=source.choice((0, 0, 0, 1, 2)),
            changes=source.random() < 0.5,
            window=source.choice((2, 8, 64)),
            message_bytes=source.choice((1, 40, 1 << 20)),
            applying_bytes=source.choice((1, 100, 1 << 20)),
            drop=source.choice((0.0, 0.01, 0.1)) if faulty else 0.0,
            duplicate=source.choice((0.0, 0.02, 0.1)) if faulty else 0.0,
            reorder=source.choice((0.0, 0.05, 0.3)) if faulty else 0.0,
            crash=source.choice((0.0, 0.02, 0.15)) if faulty else 0.0,
            partition=source.choice((0.0, 0.02, 0.1)) if faulty else 0.0,
            compact=source.choice((0.0, 0.05, 0.3)),
            contest=source.choice((0.003, 0.01, 0.05)),
            restart=source.choice((0.02, 0.2)),
            delay_ready=source.choice((0.0, 0.1)),
        )


@dataclass(frozen=True)
class Report:
    """What a run has seen, to tell a busy one from an idle one."""

    events: int
    terms: int
    committed: int
    reads: int
    changes: int
    crashes: int


class World:
    """All nodes and the network between them."""

    def __init__(self, seed: int, profile: Profile) -> None:
        self.profile = profile
        self.source = random.Random(seed)
        self._random = self.source.random
        self._voters = tuple(range(1, profile.nodes + 1))
        learners = tuple(range(profile.nodes + 1, profile.nodes + 1 + profile.learners))
        self._bootstrap = Snapshot(1, 1, ConfState(self._voters, learners), bytes(4))
        self.oracle = Oracle(self._bootstrap)
        self.inboxes: dict[int, deque[Message]] = {}
        self.replicas: dict[int, Replica] = {}
        self._blocked: set[tuple[int, int]] = set()
        for node in (*self._voters, *learners):
            self._add(node, self._bootstrap)
        self._counter = 0
        self._changes = 0
        self._crashes = 0
        self._quiet = False
        """Faults have stopped."""

    def _settings(self, node: int, applied: int) -> RaftSettings:
        profile = self.profile
        return RaftSettings(
            node=node,
            election_jitter=lambda timeout: int(self._random() * timeout),
            applied=applied,
            async_storage_writes=profile.async_writes,
            prevote=profile.prevote,
            check_quorum=profile.check_quorum,
            inflight_messages_max=profile.window,
            message_bytes_max=profile.message_bytes,
            applying_bytes_max=profile.applying_bytes,
            step_down_on_removal=True,
        )

    def _add(self, node: int, bootstrap: Snapshot) -> None:
        self.inboxes[node] = deque(maxlen=_INBOX_MAX)
        self.replicas[node] = Replica(node, bootstrap, self._settings, self.oracle, self._send)

    # Network

    def _send(self, message: Message) -> None:
        inbox = self.inboxes.get(message.target)
        if inbox is None:
            return
        if not self._quiet:
            chance = self._random()
            profile = self.profile
            if chance < profile.drop:
                return
            if self._blocked and (message.source, message.target) in self._blocked:
                return
            if chance > 1.0 - profile.duplicate:
                inbox.append(_copy(message))
        inbox.append(message)

    def _receive(self, node: int, count: int) -> None:
        """A node takes some messages, then does the work that follows from them."""
        replica, inbox = self.replicas[node], self.inboxes[node]
        if not replica.alive:
            inbox.clear()
            return
        step = replica.raw.step
        for _ in range(count):
            if len(inbox) > 1 and self._random() < self.profile.reorder:
                inbox.rotate(-int(self._random() * len(inbox)))
            try:
                step(inbox.popleft())
            except (ProposalDropped, UnknownPeer, LocalMessageRefused):
                continue
        if self.profile.delay_ready == 0.0 or self._random() >= self.profile.delay_ready:
            replica.pump()

    # Events

    def event(self) -> int:
        """One thing happens, or a few messages arrive; answers how many events that was."""
        source = self._random
        chance = source()
        nodes = list(self.replicas)
        node = nodes[int(source() * len(nodes))]
        replica = self.replicas[node]
        if not replica.alive:
            if source() < self.profile.restart:
                replica.start()
                return 1
            return 0
        if chance < 0.7:
            waiting = len(self.inboxes[node])
            if waiting:
                count = min(waiting, 1 + int(source() * 6))
                self._receive(node, count)
                return count
            return self._storage_work(replica)
        if chance < 0.78:
            replica.raw.tick()
            if source() < 0.05:
                self._report_snapshots(replica)
            replica.pump()
        elif chance < 0.88:
            self._client(replica)
        elif chance < 0.98:
            return self._storage_work(replica)
        else:
            return self._fault(replica)
        return 1

    def _report_snapshots(self, replica: Replica) -> None:
        """The transport has sent the snapshots that are on their way, or lost them."""
        raft = replica.raw.raft
        for node, progress in raft.tracker.progress.items():
            if raft.role is Role.LEADER and progress.state is ProgressState.SNAPSHOT:
                replica.raw.report_snapshot(node, failed=self._random() < 0.5)

    def _storage_work(self, replica: Replica) -> int:
        if replica.append_work and (not replica.apply_work or self._random() < 0.7):
            replica.run_append()
        elif replica.apply_work:
            replica.run_apply()
        elif not replica.raw.has_ready():
            return 0
        replica.pump()
        return 1

    def _client(self, replica: Replica) -> None:
        self._counter += 1
        name = self._counter.to_bytes(8)
        chance = self._random()
        raw = replica.raw
        try:
            if chance < self.profile.contest:
                raw.campaign()
            elif chance < 0.75:
                raw.propose([name])
            elif chance < 0.95:
                self.oracle.read_began(name)
                raw.read_index(name)
            elif chance < 0.97:
                raw.transfer_leadership(self.source.choice(list(self.replicas)))
            elif chance < 0.98:
                raw.forget_leader()
            elif chance < 0.985:
                raw.report_unreachable(self.source.choice(list(self.replicas)))
            elif self.profile.changes:
                self._propose_change(replica)
        except ProposalDropped:
            return
        replica.pump()

    def _propose_change(self, replica: Replica) -> None:
        """Add, remove, promote and demote; at least two voters stay in the whole."""
        source = self.source
        count = source.choice((0, 1, 1, 1, 2, 3))
        kinds = (StepKind.ADD_VOTER, StepKind.ADD_VOTER, StepKind.ADD_LEARNER, StepKind.REMOVE)
        steps = tuple(
            ChangeStep(source.choice(kinds), source.randint(1, _IDS_MAX)) for _ in range(count)
        )
        voters = set(replica.configuration.voters)
        for step in steps:
            (voters.add if step.kind is StepKind.ADD_VOTER else voters.discard)(step.node)
        if len(voters) < 2:
            return
        for step in steps:
            if step.node not in self.replicas:
                self._add(step.node, Snapshot())
        self._changes += 1
        if len(steps) == 1 and source.random() < 0.5:
            replica.raw.propose_change(ChangeV1(steps[0]))
        else:
            replica.raw.propose_change(ChangeV2(steps, source.choice(list(Transition))))

    def _fault(self, replica: Replica) -> int:
        profile = self.profile
        chance = self._random()
        if chance < profile.crash:
            self._crashes += 1
            replica.crash(lose_unsynced=self._random() < 0.5)
        elif chance > 1.0 - profile.partition:
            self._partition()
        elif 0.5 < chance < 0.5 + profile.compact:
            replica.compact(int(self._random() * 20))
        else:
            return 0
        return 1

    def _partition(self) -> None:
        """Cut some links, in one direction or both; or mend all of them."""
        if self._blocked:
            self._blocked = set()
            return
        nodes = list(self.replicas)
        side = {node for node in nodes if self._random() < 0.4}
        both = self._random() < 0.7
        self._blocked = {
            (first, second)
            for first in nodes
            for second in nodes
            if (first in side) != (second in side) and (both or first in side)
        }

    # The end

    def settle(self) -> None:
        """Stop all faults; the group must get a leader and commit, within bounds."""
        self._quiet = True
        self._blocked = set()
        for replica in self.replicas.values():
            if not replica.alive:
                replica.start()
        target = 0
        # A node that was added late may have to get the whole log, an entry at a time.
        rounds = _SETTLE_ROUNDS + 2 * self.oracle.last
        for round_number in range(rounds):
            for node, replica in self.replicas.items():
                replica.raw.tick()
                if round_number % 10 == 9 and replica.raw.raft.role is Role.LEADER:
                    self._report_snapshots(replica)
                    self._finish_change(replica)
                replica.pump()
                while replica.append_work or replica.apply_work:
                    self._storage_work(replica)
                self._receive(node, len(self.inboxes[node]))
            if not target and round_number > 50:
                target = self.oracle.last + 3
            if target and self._members_applied(target):
                return
        raise Violation(f"no progress within {rounds} rounds after all faults stopped")

    def _finish_change(self, replica: Replica) -> None:
        try:
            if replica.configuration.voters_outgoing and not replica.configuration.auto_leave:
                replica.raw.propose_change(ChangeV2())
            replica.raw.propose([b"settled"])
        except ProposalDropped:
            return

    def _members_applied(self, index: int) -> bool:
        for replica in self.replicas.values():
            if replica.raw.raft.role is Role.LEADER:
                state = replica.configuration
                members = (*state.voters, *state.learners)
                return all(self.replicas[node].applied >= index for node in members)
        return False

    def compare_logs(self) -> None:
        alive = [replica for replica in self.replicas.values() if replica.alive]
        for replica in alive:
            replica.look()
        self.oracle.compare_logs([replica.raw.raft for replica in alive])

    def report(self, events: int) -> Report:
        oracle = self.oracle
        return Report(
            events,
            len(oracle.leaders),
            oracle.last,
            oracle.reads_served,
            self._changes,
            self._crashes,
        )


def _copy(message: Message) -> Message:
    """A duplicate is an object of its own, as it would be after decoding."""
    entries = message.entries
    if message.kind is _PROPOSE:
        entries = [Entry(kind=entry.kind, payload=entry.payload) for entry in entries]
    return Message(
        message.kind,
        message.target,
        message.source,
        message.term,
        message.log_term,
        message.index,
        entries,
        message.commit,
        message.rejected,
        message.reject_hint,
        message.vote,
        message.snapshot,
        message.context,
    )


def run(seed: int, events: int, *, profile: Profile | None = None) -> Report:
    """Run a seeded world for so many events; raises `Violation` where raft breaks a promise."""
    world = World(seed, profile or Profile.choose(seed))
    with repeatable("raft", seed):
        return _run(world, events)


def _run(world: World, events: int) -> Report:
    done = 0
    compare_at = _COMPARE_EVERY
    event = world.event
    while done < events:
        done += event()
        if done >= compare_at:
            compare_at += _COMPARE_EVERY
            world.compare_logs()
    if world.profile.prevote and world.profile.check_quorum:
        # Without both, a node that was removed may call elections for ever.
        world.settle()
        world.compare_logs()
    return world.report(done)
