"""`NodeHost`: all raft groups of one store, and the interface for everything built on raft.

host = await NodeHost.open(environment, folder, cluster="c", store=1, network=network)
host.register(service)                      # served to the other stores by the caller
await host.start_group(7, MyStateMachine, members={1: "a:7001", 2: "b:7001", 3: "c:7001"})
result = await host.propose(7, b"command", timeout_ms=1000)
answer = await host.read(7, query, timeout_ms=1000)
await host.close()
"""

import asyncio
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from raftwood.base.deadlines import within
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    DeadlineExceeded,
    InvalidInput,
    RaftwoodError,
    ShuttingDown,
    StoreDamaged,
    TooLarge,
    Unavailable,
)
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.disk.segment_log import LogSettings, SegmentLog
from raftwood.disk.store import Store
from raftwood.net import Service
from raftwood.raft.bootstrap import ReplicaOpener
from raftwood.raft.core import NOBODY, ConfState, Entry, EntryKind
from raftwood.raft.damaged_log import open_store
from raftwood.raft.engine import HostTasks, Outbox, RaftEngine
from raftwood.raft.entry_format import LogEntry
from raftwood.raft.groups import RaftGroups
from raftwood.raft.leadership import is_far_slower
from raftwood.raft.log_ends import LogEnds
from raftwood.raft.membership import MemberStep, addresses_in, change_of_members, checked_result
from raftwood.raft.message_handler import MessageHandler
from raftwood.raft.quiesce import stand_first
from raftwood.raft.registry import StoreRegistry
from raftwood.raft.repair import Repairs, RepairService
from raftwood.raft.replica import Applier, Replica
from raftwood.raft.requests import (
    ProposalBatch,
    ProposalDone,
    ProposalMemory,
    read_waiter,
    split_batch,
    waiter,
)
from raftwood.raft.sessions import encode_nothing
from raftwood.raft.settings import RaftHostSettings, check_fit
from raftwood.raft.snapshot_files import SnapshotFiles
from raftwood.raft.snapshotter import Snapshotter, SnapshotTransfer
from raftwood.raft.state_machine import RetainingMachine, StateMachine
from raftwood.raft.ticker import Ticker
from raftwood.raft.transport import HostNetwork, Introduction, Transport


class GroupStatus(msgspec.Struct, frozen=True):
    """The status of one replica, as its own store knows it."""

    group: int
    store: int
    role: str
    leader: int
    term: int
    first_index: int
    last_index: int
    commit: int
    applied: int
    snapshots: tuple[int, ...]
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    epoch: int
    """The index of the last membership change that was applied."""
    is_joint: bool
    is_asleep: bool
    waiting_bytes: int
    """Proposals that are not applied yet."""
    cache_bytes: int
    sessions: int
    matches: dict[int, int]
    """At the leader: the index up to which each member's log is known to agree."""
    addresses: dict[int, str]
    problem: str = ""
    """Why the replica does not serve, and how it is being repaired."""


def status_of(replica: Replica, store: int, addresses: dict[int, str]) -> GroupStatus:
    raft = replica.node.raft
    configuration = replica.configuration
    storage = replica.storage
    matches = {}
    if replica.is_leader:
        matches = {node: progress.match for node, progress in raft.tracker.progress.items()}
    members = {*configuration.voters, *configuration.learners, *configuration.voters_outgoing}
    return GroupStatus(
        group=replica.group,
        store=store,
        role=raft.role.value.removeprefix("State").lower(),
        leader=raft.lead,
        term=raft.term,
        first_index=storage.first_index(),
        last_index=raft.log.last_index,
        commit=raft.log.committed,
        applied=replica.applied,
        snapshots=storage.state.snapshots,
        voters=configuration.voters,
        learners=configuration.learners,
        epoch=replica.applier.configuration_index,
        is_joint=bool(configuration.voters_outgoing),
        is_asleep=replica.is_asleep,
        waiting_bytes=replica.proposals.size_bytes,
        cache_bytes=storage.cache.size_bytes,
        sessions=len(replica.applier.sessions),
        matches=matches,
        addresses={node: addresses[node] for node in sorted(members) if node in addresses},
    )


def halted_status(group: int, store: int, problem: str) -> GroupStatus:
    """The status of a replica whose data is bad, so that nothing else is known."""
    return GroupStatus(
        group=group,
        store=store,
        role="halted",
        leader=0,
        term=0,
        first_index=0,
        last_index=0,
        commit=0,
        applied=0,
        snapshots=(),
        voters=(),
        learners=(),
        epoch=0,
        is_joint=False,
        is_asleep=False,
        waiting_bytes=0,
        cache_bytes=0,
        sessions=0,
        matches={},
        addresses={},
        problem=problem,
    )


def register_metrics(
    metrics: Metrics,
    replicas: Mapping[int, Replica],
    turns: RaftEngine,
    transfer: SnapshotTransfer,
    waiting: ProposalMemory,
    log: SegmentLog,
    ticking: Ticker,
) -> None:
    def count(name: str) -> int:
        return sum(bool(getattr(replica, name)) for replica in replicas.values())

    metrics.pull_gauge("raft_groups", "Replicas on this store.", lambda: len(replicas))
    metrics.pull_gauge("raft_groups_led", "Groups led.", lambda: count("is_leader"))
    metrics.pull_gauge(
        "raft_groups_without_leader",
        "Groups that this store knows no leader of.",
        lambda: sum(not replica.leader for replica in replicas.values()),
    )
    metrics.pull_gauge("raft_groups_asleep", "Idle groups.", lambda: count("is_asleep"))
    metrics.pull_gauge(
        "raft_waiting_bytes", "Proposals that are not applied yet.", lambda: waiting.size_bytes
    )
    metrics.pull_gauge(
        "raft_backlog_writes",
        "Writes that the log had no room for.",
        lambda: sum(len(replica.backlog) for replica in replicas.values()),
    )
    metrics.pull_counter("raft_turns_total", "Turns of work.", lambda: turns.turn_count)
    metrics.pull_counter("raft_writes_total", "Writes to the log.", lambda: turns.write_count)
    metrics.pull_counter(
        "raft_snapshots_sent_total", "Snapshots sent.", lambda: transfer.sent_count
    )
    metrics.pull_counter(
        "raft_snapshots_received_total", "Snapshots received.", lambda: transfer.received_count
    )
    metrics.pull_gauge(
        "raft_sync_seconds",
        "What a sync of the log takes.",
        lambda: (ticking.sync_ms() or 0) / 1000,
    )
    metrics.pull_counter(
        "raft_slow_hand_overs_total",
        "Groups given to others to lead because this store's disk is slow.",
        lambda: ticking.slow_hand_overs,
    )
    metrics.pull_gauge(
        "raft_log_disk_bytes", "Size of the log.", lambda: log.statistics().disk_bytes
    )
    metrics.pull_gauge(
        "raft_log_live_bytes", "What is needed of it.", lambda: log.statistics().live_bytes
    )


async def until(is_true: Callable[[], bool], *, pause_s: float) -> None:
    """Waits, by polling, until a condition holds."""
    while True:
        if is_true():
            return
        await asyncio.sleep(pause_s)


async def hand_over(
    replicas: Mapping[int, Replica], turns: RaftEngine, *, timeout_ms: int, pause_s: float
) -> None:
    """Hands over the groups that this store leads, as many as possible within a time.

    A leader that just stops leaves its group without one until the others notice, and its proposals
    under way with an unknown outcome. Test:
    test_host::test_a_store_that_stops_hands_its_leadership_over_first
    """
    asked: dict[int, None] = {}
    with suppress(DeadlineExceeded):
        async with within(timeout_ms, "the hand-over"):
            await until(lambda: _is_done(replicas, turns, asked), pause_s=pause_s)


def _is_done(replicas: Mapping[int, Replica], turns: RaftEngine, asked: dict[int, None]) -> bool:
    """Hands over groups that this store still leads; returns whether none is left.

    A leader that was elected a moment ago knows no active follower yet, so it is asked again. Test:
    test_hand_over::test_a_group_that_came_to_a_store_a_moment_ago_is_handed_over_too
    """
    is_done = True
    for group, replica in replicas.items():
        if not replica.is_leader or len(replica.configuration.voters) == 1:
            continue
        successor = replica.best_follower()
        if successor or group not in asked:
            is_done = False
        if successor and not replica.node.raft.transferee:
            asked[group] = None
            replica.wake()
            replica.node.transfer_leadership(successor)
            turns.mark(replica)
    return is_done


_log = get_logger("raft")
_NORMAL = EntryKind.NORMAL
REACH_S = 0.5
"""A store that was just added may not be connected yet."""


class NodeHost:
    """All raft groups of one store. Use `open`, and `close` when done."""

    logs_aside: Sequence[str] = ()
    """Folders of damaged logs of this store that an operator may look at, and then remove."""

    def __init__(
        self,
        environment: Environment,
        store: Store,
        snapshot_files: SnapshotFiles,
        network: HostNetwork,
        settings: RaftHostSettings,
    ) -> None:
        self._store = store
        self.id = store.identity.store
        self.settings = settings
        self._loop = asyncio.get_running_loop()
        self._replicas: dict[int, Replica] = {}
        voting: dict[int, Replica] = {}
        """Damaged replicas, which serve no requests and vote until they have left."""
        self._is_closing = False
        self._waiting = ProposalMemory(self._replicas)
        self._snapshot_files = snapshot_files
        epoch = environment.random.getrandbits(62)
        self._book = StoreRegistry(store.log)
        self._peers = Transport(
            environment,
            network,
            own=self.id,
            introduce=lambda: self._introduction(epoch),
            on_unreachable=self._on_store_unreachable,
            on_gone=lambda peer: self._incoming.replace_leader(peer),  # noqa: PLW0108 (made below)
        )
        self._outbox = Outbox(self._peers.send, commit_delay_s=settings.tick_ms / 1000)
        self._snapshotting = Snapshotter(store.log, snapshot_files, self._peers)
        self._transfer = SnapshotTransfer(
            snapshot_files,
            self._peers,
            own=self.id,
            piece_bytes=settings.snapshot_chunk_bytes,
            replica_of=self._replica,
            mark=self._mark,
            on_failure=self._on_failed_transfer,
        )
        self._chores = HostTasks(
            settings,
            self._snapshotting,
            self._transfer,
            on_damage=self._on_damage,
            on_bug=environment.end_process,
            learn_addresses=self._set_addresses,
        )
        self._turns = RaftEngine(environment, store.log, self._outbox, self._chores, store=self.id)
        self._incoming = MessageHandler(
            self.id,
            self._replicas,
            voting,
            self._peers,
            self._book,
            self._turns,
            on_removed=self._leave,
            propose=self._control,
            on_damage=self._on_damage,
        )
        self._opener = ReplicaOpener(
            environment,
            store.log,
            settings,
            self._snapshotting,
            own=self.id,
            epoch=epoch,
            waiting=self._waiting,
            on_role=self._on_role,
            on_change=self._on_change,
        )
        self._repair_service = RepairService(
            self._peers,
            replica_of=self._replica,
            confirm=self._wait_to_read,
            change=self.change_members,
            has_begun=self._opener.has_begun,
        )
        self._repairs = Repairs(
            environment,
            self._peers,
            self._opener,
            self._snapshotting,
            snapshot_files,
            own=self.id,
            running=self._replicas.get,
            voting=voting,
            hold_votes=lambda replica: self._log_ends.hold_votes(replica),  # noqa: PLW0108 (below)
            start=lambda group: self._groups.serve(group),  # noqa: PLW0108 (it is made below)
            on_removed=lambda group: self._groups.forget(group),  # noqa: PLW0108 (as above)
            run=self._chores.run,
        )
        self._log_ends = LogEnds(
            store.log,
            settings,
            ChainMap(self._replicas, voting),
            self._peers,
            self._turns,
            state_of=self._opener.state_of,
            on_lost_log=self._incoming.on_lost_log,
            run=self._chores.run,
        )
        self._groups = RaftGroups(
            self._replicas,
            self._opener,
            snapshot_files,
            self._chores,
            self._turns,
            self._repairs,
            self._log_ends,
            own=self.id,
            learn_addresses=self._set_addresses,
            is_closing=lambda: self._is_closing,
            book=self._book,
        )
        self._ticking = Ticker(
            settings,
            self._replicas,
            voting,
            self._peers,
            self._turns,
            self._transfer,
            self._log_ends,
            sync_time=store.log.sync_time,
            propose=self._control,
            on_lost=self._incoming.wake_groups_of,
        )

    @classmethod
    async def open(
        cls,
        environment: Environment,
        path: str,
        *,
        cluster: str,
        store: int,
        network: HostNetwork,
        settings: RaftHostSettings | None = None,
        log_settings: LogSettings | None = None,
        peers: Mapping[int, str] | None = None,
    ) -> "NodeHost":
        """Opens the store in a folder; errors as of `disk.Store`.

        `peers` are stores that the settings name. They, and those that this store has heard of,
        fill a log that proves damaged (`damaged_log`).
        """
        settings = settings or RaftHostSettings()
        log_settings = log_settings or LogSettings()
        check_fit(settings, log_settings)
        opened = await open_store(
            environment,
            path,
            cluster=cluster,
            store=store,
            settings=settings,
            log_settings=log_settings,
            peers=peers or {},
        )
        try:
            files = await SnapshotFiles.recover(environment.files, f"{opened.path}/snapshots")
            host = cls(environment, opened, files, network, settings)
            host.logs_aside = await opened.logs_aside()
        except BaseException:
            await opened.close()
            raise
        for peer, address in host._book.addresses.items():
            host._peers.set_address(peer, address)
        host._ticking.start()
        return host

    def register(self, service: Service) -> None:
        """Register the methods that the other stores call."""
        self._incoming.register(service)
        self._transfer.register(service)
        self._repair_service.register(service)
        self._log_ends.register(service)

    # Groups

    async def start_group(
        self,
        group: int,
        factory: Callable[[], StateMachine],
        *,
        members: Mapping[int, str] | None = None,
    ) -> None:
        """Starts this store's replica of a group: restored and replayed when it returns.

        `members` are the first stores of a new group and their addresses, the same on each. A store
        that is added later starts without them, and gets them from the leader. A replica whose data
        is damaged is repaired meanwhile: see `halted` and its `status`.
        """
        self._check_open()
        if members:
            self._set_addresses(dict(members))
        await self._groups.start(group, factory, tuple(members or ()))

    def begin_soon(self, group: int) -> None:
        """Elect a new group's first leader without waiting for an election timeout."""
        if group in self._replicas:
            stand_first(self._replicas[group])

    async def stop_group(self, group: int) -> None:
        """Stops the replica, or its repair; its data stays, and it may be started again."""
        self._groups.stop(group)

    async def remove_replica(self, group: int) -> None:
        """Drops a replica that its group has removed, and its data; keeps only term and vote."""
        await self._groups.remove(group)

    def register_metrics(self, metrics: Metrics) -> None:
        """Adds the metrics of this store's groups."""
        register_metrics(
            metrics,
            self._replicas,
            self._turns,
            self._transfer,
            self._waiting,
            self._store.log,
            self._ticking,
        )
        self._repairs.register_metrics(metrics)

    # Proposals and reads

    def propose_batch(
        self,
        group: int,
        payloads: Sequence[bytes],
        done: ProposalDone,
        *,
        kind: EntryKind = _NORMAL,
        again: bool = False,
    ) -> None:
        """Propose commands that follow one another; `done` is called once, perhaps much later.

        With `again` they may have been proposed before: none of them comes into the log twice.
        Raises at once if they are refused: `NotLeader`, `Overloaded`, `TooLarge`, `DiskFull`.
        """
        replica = self._replica(group)
        if not payloads or not all(payloads):
            raise InvalidInput("a proposal has one command at least, and a command one byte")
        sizes = [len(payload) for payload in payloads]
        largest, most = max(sizes), self.settings.command_bytes_max
        if largest > most:
            raise TooLarge(f"a command of {largest} bytes is above the limit of {most}: split it")
        entries = [Entry(0, 0, kind, payload) for payload in payloads]
        if again:
            self._check_open()
            replica.propose_again(entries, done)
            self._turns.mark(replica)
            return
        size = sum(sizes)
        if size <= self.settings.message_bytes_max:
            self._propose(replica, ProposalBatch(entries, size, done))
        else:
            self._propose(replica, *split_batch(entries, self.settings.message_bytes_max, done))

    def _propose(self, replica: Replica, *batches: ProposalBatch) -> None:
        self._check_open()
        replica.propose(*batches)
        self._turns.mark(replica)

    async def propose(
        self, group: int, payload: bytes, *, timeout_ms: int, kind: EntryKind = _NORMAL
    ) -> Any:
        """Propose one command and wait for its result."""
        future, done = waiter(self._loop)
        self.propose_batch(group, [payload], done, kind=kind)
        async with within(timeout_ms, f"a proposal to group {group}"):
            return await future

    def may_hold(self, group: int, session: int, sequence: int) -> bool:
        """Whether a session's command may have come to the group before, by another leader."""
        return self._replica(group).may_hold(session, sequence)

    async def check_writes(self, group: int, *, timeout_ms: int) -> None:
        """Finds out whether the group takes writes, by committing one that changes nothing."""
        await self.propose(group, encode_nothing(), timeout_ms=timeout_ms, kind=EntryKind.CONTROL)

    async def read(self, group: int, query: Any, *, timeout_ms: int) -> Any:
        """Asks the state machine, with every write that was acked to any client before the call.

        It costs a round of heartbeats, shared by all reads that wait (Raft dissertation, 6.4). A
        lease would save the round, but a process that was stopped and goes on would answer from an
        old state before its first tick. Planted bugs: "reads by lease", "reads join a round under
        way"
        """
        replica = self._replica(group)
        await self._wait_to_read(replica, timeout_ms)
        return replica.applier.machine.lookup(query)

    async def _wait_to_read(self, replica: Replica, timeout_ms: int) -> None:
        self._check_open()
        future, done = read_waiter(self._loop)
        replica.read(done)
        self._turns.mark(replica)
        async with within(timeout_ms, f"a read of group {replica.group}"):
            await future

    # Snapshots

    async def snapshot(self, group: int) -> int:
        """Takes a snapshot of the applied state; returns its index."""
        replica = self._replica(group)
        with self._chores.halting(replica):
            return await self._snapshotting.save(replica)

    async def compact(self, group: int, up_to: int, *, log_up_to: int | None = None) -> int:
        """Makes the newest snapshot at or below an index visible and cuts the log before it.

        With `log_up_to` the log is cut there instead, if that is less. Answers the visible
        snapshot's index.
        """
        replica = self._replica(group)
        with self._chores.halting(replica):
            return await self._snapshotting.compact(replica, up_to, log_up_to=log_up_to)

    async def drop_snapshot(self, group: int, index: int) -> None:
        """Removes a snapshot that is neither the visible one, the first, nor the newest."""
        await self._snapshotting.drop(self._replica(group), index)

    # Membership

    async def change_members(
        self, group: int, steps: Sequence[MemberStep], *, timeout_ms: int
    ) -> ConfState:
        """Adds, promotes, demotes or removes stores; several steps take effect together."""
        replica = self._replica(group)
        replica.check_change(steps)
        async with within(timeout_ms, f"a change of group {group}"):
            if replica.must_apply_before_a_change:
                await self._wait_to_read(replica, timeout_ms)
            entry = change_of_members(steps, self.addresses(), replica.configuration)
            future, done = waiter(self._loop)
            self._propose(replica, ProposalBatch([entry], len(entry.payload), done))
            return checked_result(group, await future)

    async def transfer_leadership(self, group: int, store: int, *, timeout_ms: int) -> None:
        """Lets another voter lead; `DeadlineExceeded` if it does not in time.

        An attempt ends after an election timeout, and fails silently: the target may be busy with
        its disk, or not have applied yet that it is a voter. So it is asked again, after a rest as
        long as that: during an attempt the group takes no proposals.
        """
        replica = self._replica(group)
        if not replica.is_leader:
            raise replica.not_leader()
        if store not in replica.configuration.voters:
            raise InvalidInput(f"store {store} is no voter of group {group}")
        pause_s = self.settings.tick_ms / 4000
        if store != self.id:
            await self._reached(store, pause_s)

        rest_s = self.settings.election_ticks * self.settings.tick_ms / 1000
        again_at = 0.0

        def leads() -> bool:
            nonlocal again_at
            now = self._loop.time()
            if replica.leader == store:
                return True
            if not replica.is_leader and replica.leader not in (NOBODY, self.id):
                raise replica.not_leader()
            if replica.node.raft.transferee:
                again_at = now + rest_s
            elif replica.is_leader and now >= again_at:
                replica.wake()
                replica.node.transfer_leadership(store)
                self._turns.mark(replica)
            return False

        async with within(timeout_ms, f"a transfer of group {group} to store {store}"):
            await until(leads, pause_s=pause_s)

    async def _reached(self, store: int, pause_s: float) -> None:
        """Else a leader that hands over takes no proposals for an election's time, in vain."""
        try:
            async with asyncio.timeout(REACH_S):
                await until(lambda: self._peers.is_connected(store), pause_s=pause_s)
        except TimeoutError:
            raise Unavailable(f"store {store} cannot be reached to lead: try another") from None

    # What replicas ask for

    def _on_role(self, replica: Replica) -> None:
        raft = replica.node.raft
        _log.info(
            "role", group=replica.group, role=raft.role.value, term=raft.term, leader=raft.lead
        )

    def _on_change(self, applier: Applier, entry: Entry) -> None:
        addresses = addresses_in(entry)
        applier.addresses.update(addresses)
        self._set_addresses(addresses)

    def _on_store_unreachable(self, store: int) -> None:
        for replica in self._replicas.values():
            if replica.is_leader and replica.is_serving:
                replica.node.report_unreachable(store)

    def _control(self, replica: Replica, payload: bytes) -> None:
        """Proposes an entry of the host's own, whose result no caller waits for."""
        entry = Entry(0, 0, EntryKind.CONTROL, payload)
        try:
            self._propose(replica, ProposalBatch([entry], len(payload), lambda _, __: None))
        except RaftwoodError as error:
            _log.debug("own entry not proposed", group=replica.group, reason=error.message)

    def _introduction(self, epoch: int) -> bytes:
        address = self._book.addresses.get(self.id, "")
        return msgspec.msgpack.encode(
            Introduction(self._store.identity.incarnation, epoch, address, knows_sync_times=True)
        )

    # The end

    async def close(self, *, hand_over_ms: int = 0) -> None:
        """Hands over what this store leads, within a time, then stops and refuses the rest."""
        if hand_over_ms and not self._is_closing:
            await hand_over(
                self._replicas,
                self._turns,
                timeout_ms=hand_over_ms,
                pause_s=self.settings.tick_ms / 4000,
            )
        self._is_closing = True
        await self._ticking.close()
        self._turns.close()
        self._outbox.close()
        for replica in self._replicas.values():
            replica.halt()
        await self._chores.close()
        await self._peers.close()
        for replica in list(self._replicas.values()):
            self._groups.stop(replica.group)
        if self._log_ends.are_needed:
            # This start has not found out yet what the crash before it cost (`log_ends`). Closed as
            # usual, the log would look whole to the next one. All acked entries are synced. Test:
            # test_vote_floor::test_a_store_that_closes_in_doubt_is_in_doubt_at_its_next_start
            await self._store.abandon()
        else:
            await self._store.close()

    # Calls between the parts

    def _replica(self, group: int) -> Replica:
        return self._groups.get(group)

    def _leave(self, replica: Replica) -> None:
        self._groups.leave(replica)

    def _mark(self, replica: Replica) -> None:
        self._turns.mark(replica)

    def _on_failed_transfer(self, replica: Replica) -> None:
        self._chores.verify_snapshots(replica)

    def _on_damage(self, replica: Replica, error: StoreDamaged) -> None:
        self._groups.on_damage(replica, error)

    def _set_addresses(self, addresses: dict[int, str]) -> None:
        own = self._book.addresses.get(self.id)
        self._book.set_addresses(addresses)
        for store, address in addresses.items():
            self._peers.set_address(store, address)
        self._incoming.meet(addresses)
        if self._book.addresses.get(self.id) != own:
            self._peers.introduce_again()

    def _check_open(self) -> None:
        if self._is_closing:
            raise ShuttingDown(f"store {self.id} is shutting down: use another")

    def groups(self) -> list[int]:
        return sorted(self._replicas)

    def halted(self) -> dict[int, str]:
        """Groups whose replicas here are damaged and not repaired yet, and why."""
        return dict(self._repairs.problems)

    def is_leading(self, group: int) -> bool:
        return self._groups.get(group).is_leader

    def leader(self, group: int) -> int:
        """The store that leads the group as far as this one knows; 0 for none."""
        return self._groups.get(group).leader

    def status(self, group: int) -> GroupStatus:
        problem = self._repairs.problems.get(group)
        if problem is not None:
            return halted_status(group, self.id, problem)
        return status_of(self._groups.get(group), self.id, self.addresses())

    def addresses(self) -> dict[int, str]:
        """The addresses of all stores that this one knows, its own too if it was given."""
        return dict(self._book.addresses)

    def stale_read(self, group: int, query: Any) -> Any:
        """Asks the state machine as it is here, which may be behind."""
        replica = self._groups.get(group)
        if replica.is_installing:
            raise Unavailable(f"group {group} is being restored on store {self.id}: try again")
        return replica.applier.machine.lookup(query)

    async def read_log(
        self, group: int, first_index: int, *, bytes_max: int = 1 << 20
    ) -> tuple[list[LogEntry], int]:
        """Committed entries from an index on, and where to read next; `OutOfRange` names the range.

        No other store is asked: for the newest entries, do a `read` first.
        """
        replica = self._groups.get(group)
        with self._chores.halting(replica):
            return await replica.committed(first_index, bytes_max)

    def stored_groups(self) -> list[int]:
        """All groups with data on this store, running or not."""
        return self._opener.stored_groups()

    def has_had(self, group: int) -> bool:
        """Whether this store has or had a replica of the group, and may have voted in it."""
        return self._opener.state_of(group) is not None

    @property
    def damage(self) -> str:
        """What was wrong with the log that was set aside last; empty where none ever was."""
        return self._book.damage

    @property
    def incarnation(self) -> str:
        """The number of the data folder: a store that comes back empty has another one."""
        return self._store.identity.incarnation

    def refusals(self) -> dict[int, str]:
        """Stores that do not let this one in, and why."""
        return self._peers.refusals()

    def applied(self, group: int) -> int:
        """The index that the group's state machine here has come to."""
        return self._groups.get(group).applied

    def machine(self, group: int) -> StateMachine:
        """The state machine of this replica itself."""
        return self._groups.get(group).applier.machine

    def freeable_index(self, group: int) -> int:
        """Up to where the log need not be kept, once a snapshot is there."""
        machine = self.machine(group)
        return (
            machine.freeable_index if isinstance(machine, RetainingMachine) else self.applied(group)
        )

    def leader_changes(self, group: int) -> int:
        """How often another store was seen to lead than before, since the replica's start."""
        return self._groups.get(group).leader_changes

    @property
    def slow_hand_overs(self) -> int:
        """How often a group was given away because this store's disk is slow."""
        return self._ticking.slow_hand_overs

    @property
    def sync_ms(self) -> int | None:
        """How long the disk takes to make a write durable; None before the first one."""
        return self._ticking.sync_ms()

    def faster_stores(self) -> dict[int, int]:
        """Stores whose disks are far faster than this one's, which is slow: ms for a sync."""
        slow_ms, own_ms = self._ticking.slow_sync_ms, self.sync_ms
        told = {store: self._peers.sync_ms(store) for store in self._peers.addresses()}
        return {
            store: sync_ms
            for store, sync_ms in told.items()
            if sync_ms is not None and is_far_slower(own_ms, sync_ms, slow_ms=slow_ms)
        }

    def stored_bytes(self, group: int) -> tuple[int, int]:
        """The bytes that a group takes on the disk: its entries, and its snapshots."""
        return self._store.log.size_of(group), self._snapshotting.size_of(group)
