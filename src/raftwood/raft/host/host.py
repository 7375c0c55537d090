"""`Host`: all raft groups of one store. The door for everything that is built on raft.

host = await Host.open(environment, folder, cluster="c", store=1, network=network)
host.register(service)                      # served to the other stores by the caller
await host.start_group(7, MyStateMachine, members={1: "a:7001", 2: "b:7001", 3: "c:7001"})
result = await host.propose(7, b"command", timeout_ms=1000)
answer = await host.read(7, query, timeout_ms=1000)
await host.close()
"""

import asyncio
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import (
    InvalidInput,
    RaftwoodError,
    ShuttingDown,
    StoreDamaged,
    TooLarge,
    Unavailable,
)
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.disk.segment_log import LogSettings
from raftwood.disk.store import Store
from raftwood.net import Service
from raftwood.raft.core import NOBODY, ConfState, Entry, EntryKind
from raftwood.raft.host.applying import Applier
from raftwood.raft.host.book import StoreBook
from raftwood.raft.host.chores import Chores
from raftwood.raft.host.control import encode_nothing
from raftwood.raft.host.damaged_log import open_store
from raftwood.raft.host.deadlines import within
from raftwood.raft.host.groups import Groups
from raftwood.raft.host.handing_over import hand_over, until
from raftwood.raft.host.host_metrics import register_metrics
from raftwood.raft.host.incoming import Incoming
from raftwood.raft.host.log_ends import LogEnds
from raftwood.raft.host.membership import (
    MemberStep,
    addresses_in,
    change_of_members,
    checked_result,
)
from raftwood.raft.host.opening import Opener
from raftwood.raft.host.outbox import Outbox
from raftwood.raft.host.peers import Peers
from raftwood.raft.host.proposals import Batch, ProposalDone, Waiting, split_batch, waiter
from raftwood.raft.host.protocol import HostNetwork, Introduction
from raftwood.raft.host.reads import read_waiter
from raftwood.raft.host.repair import Repairs
from raftwood.raft.host.repair_service import RepairService
from raftwood.raft.host.replica import Replica
from raftwood.raft.host.settings import RaftHostSettings, check_fit
from raftwood.raft.host.snapshot_transfer import SnapshotTransfer
from raftwood.raft.host.snapshots import SnapshotFiles
from raftwood.raft.host.snapshotting import Snapshotting
from raftwood.raft.host.succession import stand_first
from raftwood.raft.host.ticking import Ticking
from raftwood.raft.host.turns import Turns
from raftwood.raft.host.views import HostViews
from raftwood.raft.state_machine import StateMachine

_log = get_logger("raft")
_NORMAL = EntryKind.NORMAL
REACH_S = 0.5
"""A store that was just added may not be connected yet."""


class Host(HostViews):
    """Use `open`, and `close` when done."""

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
        """Damaged ones, which serve nobody and vote until they have left."""
        self._is_closing = False
        self._waiting = Waiting(self._replicas)
        self._snapshot_files = snapshot_files
        epoch = environment.random.getrandbits(62)
        self._book = StoreBook(store.log)
        self._peers = Peers(
            environment,
            network,
            own=self.id,
            introduce=lambda: self._introduction(epoch),
            on_unreachable=self._on_store_unreachable,
            on_gone=lambda peer: self._incoming.replace_leader(peer),  # noqa: PLW0108 (made below)
        )
        self._outbox = Outbox(self._peers.send, commit_delay_s=settings.tick_ms / 1000)
        self._snapshotting = Snapshotting(store.log, snapshot_files, self._peers)
        self._transfer = SnapshotTransfer(
            snapshot_files,
            self._peers,
            own=self.id,
            piece_bytes=settings.snapshot_chunk_bytes,
            replica_of=self._replica,
            mark=self._mark,
            on_failure=self._on_failed_transfer,
        )
        self._chores = Chores(
            settings,
            self._snapshotting,
            self._transfer,
            on_damage=self._on_damage,
            on_bug=environment.end_process,
            learn_addresses=self._set_addresses,
        )
        self._turns = Turns(environment, store.log, self._outbox, self._chores, store=self.id)
        self._incoming = Incoming(
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
        self._opener = Opener(
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
        self._groups = Groups(
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
        self._ticking = Ticking(
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
    ) -> "Host":
        """Open the store in a folder; errors as of `disk.Store`.

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
        """Take part in what the store serves to the other stores."""
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
        """Start this store's replica of a group: restored and replayed when it returns.

        `members` are the first stores of a new group and their addresses, the same on each. A
        store that is added later starts without them, and is told the rest by the leader. A replica
        whose data is damaged is repaired meanwhile: `halted` and its `status` tell.
        """
        self._check_open()
        if members:
            self._set_addresses(dict(members))
        await self._groups.start(group, factory, tuple(members or ()))

    def begin_soon(self, group: int) -> None:
        """Where a group has had no leader yet, do not wait for one to be silent."""
        if group in self._replicas:
            stand_first(self._replicas[group])

    async def stop_group(self, group: int) -> None:
        """Stop the replica, or its repair; its data stays, and it may be started again."""
        self._groups.stop(group)

    async def remove_replica(self, group: int) -> None:
        """Drop a replica that its group has removed, and its data; only term and vote are kept."""
        await self._groups.remove(group)

    def register_metrics(self, metrics: Metrics) -> None:
        """Let a store's metrics tell of its groups."""
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
        Raises what refuses them at once: `NotLeader`, `Overloaded`, `TooLarge`, `DiskFull`.
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
            self._propose(replica, Batch(entries, size, done))
        else:
            self._propose(replica, *split_batch(entries, self.settings.message_bytes_max, done))

    def _propose(self, replica: Replica, *batches: Batch) -> None:
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
        """See that the group takes a write: one that changes nothing is committed and applied."""
        await self.propose(group, encode_nothing(), timeout_ms=timeout_ms, kind=EntryKind.CONTROL)

    async def read(self, group: int, query: Any, *, timeout_ms: int) -> Any:
        """Ask the state machine, with all that was answered to anybody before the call."""
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
        """Take a snapshot of what is applied now; answers its index."""
        replica = self._replica(group)
        with self._chores.halting(replica):
            return await self._snapshotting.save(replica)

    async def compact(self, group: int, up_to: int, *, log_up_to: int | None = None) -> int:
        """Make the newest snapshot at or below an index the visible one and cut the log before it.

        With `log_up_to` the log is cut there instead, if that is less. Answers the visible
        snapshot's index.
        """
        replica = self._replica(group)
        with self._chores.halting(replica):
            return await self._snapshotting.compact(replica, up_to, log_up_to=log_up_to)

    async def drop_snapshot(self, group: int, index: int) -> None:
        """Remove a snapshot that is neither the visible one, the first, nor the newest."""
        await self._snapshotting.drop(self._replica(group), index)

    # Membership

    async def change_members(
        self, group: int, steps: Sequence[MemberStep], *, timeout_ms: int
    ) -> ConfState:
        """Add, promote, demote or remove stores; several steps take effect together."""
        replica = self._replica(group)
        replica.check_change(steps)
        async with within(timeout_ms, f"a change of group {group}"):
            if replica.must_apply_before_a_change:
                await self._wait_to_read(replica, timeout_ms)
            entry = change_of_members(steps, self.addresses(), replica.configuration)
            future, done = waiter(self._loop)
            self._propose(replica, Batch([entry], len(entry.payload), done))
            return checked_result(group, await future)

    async def transfer_leadership(self, group: int, store: int, *, timeout_ms: int) -> None:
        """Let another voter lead; `DeadlineExceeded` where it does not in time.

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
        """Propose an entry of the host's own, whose result nobody waits for."""
        entry = Entry(0, 0, EntryKind.CONTROL, payload)
        try:
            self._propose(replica, Batch([entry], len(payload), lambda _, __: None))
        except RaftwoodError as error:
            _log.debug("own entry not proposed", group=replica.group, reason=error.message)

    def _introduction(self, epoch: int) -> bytes:
        address = self._book.addresses.get(self.id, "")
        return msgspec.msgpack.encode(
            Introduction(self._store.identity.incarnation, epoch, address, knows_sync_times=True)
        )

    # The end

    async def close(self, *, hand_over_ms: int = 0) -> None:
        """Hand over what this store leads, within a time, then stop; the rest ends as refused."""
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
            # The next start is in doubt as this one was; all that was acked is synced.
            await self._store.abandon()
        else:
            await self._store.close()

    # What the parts ask of one another

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
