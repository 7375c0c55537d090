"""`Host`: all raft groups of one store. The door for everything that is built on raft.

host = await Host.open(environment, folder, cluster="c", store=1, network=network)
host.register(service)                      # served to the other stores by the caller
await host.start_group(7, MyStateMachine, members={1: "a:7001", 2: "b:7001", 3: "c:7001"})
result = await host.propose(7, b"command", timeout_ms=1000)
answer = await host.read(7, query, timeout_ms=1000)
await host.close()
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import (
    AlreadyExists,
    DeadlineExceeded,
    InvalidConfiguration,
    InvalidInput,
    NotFound,
    ProtocolError,
    RaftwoodError,
    ShuttingDown,
    TooLarge,
    Unavailable,
)
from raftwood.base.logs import get_logger
from raftwood.disk.segment_log import LogSettings, State
from raftwood.disk.store import Store
from raftwood.net import Identity, Payload, Service
from raftwood.raft.core import (
    APPLY_THREAD,
    ConfState,
    Entry,
    EntryKind,
    Message,
    RaftSettings,
    RawNode,
    Snapshot,
)
from raftwood.raft.host.applying import Applier
from raftwood.raft.host.book import GROUP_MAX, StoreBook
from raftwood.raft.host.group_state import decode_state, first_state
from raftwood.raft.host.group_storage import GroupStorage
from raftwood.raft.host.outbox import Outbox
from raftwood.raft.host.peers import Peers
from raftwood.raft.host.proposals import Batch, ProposalDone
from raftwood.raft.host.protocol import (
    INTRODUCE,
    PING,
    RAFT_FRAME,
    HostNetwork,
    Introduction,
    store_of,
)
from raftwood.raft.host.replica import Replica
from raftwood.raft.host.settings import RaftHostSettings
from raftwood.raft.host.turns import Turns
from raftwood.raft.host.wire import decode_frame
from raftwood.raft.state_machine import StateMachine

_log = get_logger("raft")
_REPLAY_BYTES = 4 << 20
_NORMAL = EntryKind.NORMAL


class Host:
    """Use `open`, and `close` when done."""

    def __init__(
        self,
        environment: Environment,
        store: Store,
        network: HostNetwork,
        settings: RaftHostSettings,
    ) -> None:
        self._environment = environment
        self._store = store
        self._log = store.log
        self.id = store.identity.store
        self.settings = settings
        self._loop = asyncio.get_running_loop()
        self._epoch = environment.random.getrandbits(62)
        self._book = StoreBook(store.log)
        introduction = Introduction(store.identity.incarnation, self._epoch)
        self._peers = Peers(
            environment,
            network,
            own=self.id,
            introduction=msgspec.msgpack.encode(introduction),
            on_lost=self._on_store_lost,
            on_unreachable=self._on_store_unreachable,
        )
        self._outbox = Outbox(self._peers.send)
        self._turns = Turns(
            environment,
            store.log,
            self._outbox,
            store=self.id,
            send_snapshot=self._send_snapshot,
            install_snapshot=self._install_snapshot,
            fetch=self._fetch,
        )
        self._replicas: dict[int, Replica] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._is_closing = False

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
    ) -> "Host":
        """Open the store in a folder; errors as of `disk.Store`."""
        settings = settings or RaftHostSettings()
        log_settings = log_settings or LogSettings()
        _check(settings, log_settings)
        opened = await Store.open(
            environment, path, cluster=cluster, store=store, settings=log_settings
        )
        try:
            host = cls(environment, opened, network, settings)
        except BaseException:
            await opened.close()
            raise
        for peer, address in host._book.addresses.items():
            host._peers.set_address(peer, address)
        host._ticking = asyncio.create_task(host._tick(), name="ticks of the raft host")
        return host

    def register(self, service: Service) -> None:
        """Take part in what the store serves to the other stores."""
        service.one_way(RAFT_FRAME, self._on_frame)
        service.one_way(INTRODUCE, self._on_introduction)
        service.one_way(PING, self._on_ping)

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
        store that is added later starts without them, and is told the rest by the leader.
        """
        if not 0 <= group <= GROUP_MAX:
            raise InvalidInput(f"group {group} is no number from 0 to {GROUP_MAX}")
        if group in self._replicas:
            raise AlreadyExists(f"group {group} runs on store {self.id} already")
        if members:
            self._set_addresses(dict(members))
        self._check_open()
        log = self._log
        known = decode_state(group, log.state(group) or b"") if group in log.groups() else None
        if known is None or known.is_removed:
            if members and self.id not in members:
                raise InvalidInput(f"store {self.id} is not among the members of group {group}")
            state = first_state(tuple(members or ()))
            if known is not None:
                # It was here before: its term and vote are kept, and others decide on the rest.
                state = msgspec.structs.replace(first_state(()), term=known.term, vote=known.vote)
            await log.commit(State(group, state.encoded()))
        replica = self._new_replica(group, factory())
        self._replicas[group] = replica
        try:
            await self._replay(replica)
        except BaseException:
            replica.halt()
            del self._replicas[group]
            replica.applier.machine.close()
            raise
        replica.is_serving = True
        if replica.configuration.voters == (self.id,):
            replica.node.campaign()
        self._turns.mark(replica)

    def _new_replica(self, group: int, machine: StateMachine) -> Replica:
        storage = GroupStorage(self._log, group)
        applier = Applier(machine, storage.configuration, self._on_change)
        settings = self.settings
        node = RawNode(
            RaftSettings(
                node=self.id,
                election_ticks=settings.election_ticks,
                election_jitter=self._environment.random.randrange,
                applied=applier.applied,
                async_storage_writes=True,
                message_bytes_max=settings.message_bytes_max,
                applying_bytes_max=settings.message_bytes_max * 4,
                inflight_bytes_max=settings.in_flight_bytes_max,
                check_quorum=True,
                prevote=True,
                proposal_forwarding=False,
                step_down_on_removal=True,
            ),
            storage,
        )
        applier.node = node
        prefix = self.id.to_bytes(8, "little") + self._epoch.to_bytes(8, "little")
        return Replica(
            group, node, storage, applier, settings, read_prefix=prefix, on_role=self._on_role
        )

    async def _replay(self, replica: Replica) -> None:
        """Apply what is known to be committed, before the replica says anything to anybody."""
        storage = replica.storage
        commit = storage.state.commit
        await storage.load_tail(max(commit, replica.applied) + 1, _REPLAY_BYTES)
        while replica.applied < commit:
            if not storage.is_in_memory(replica.applied + 1):
                await storage.fetch(replica.applied + 1, _REPLAY_BYTES)
            for message in replica.take_ready().messages:
                if message.target == APPLY_THREAD:
                    replica.apply(message)
            await asyncio.sleep(0)

    async def stop_group(self, group: int) -> None:
        """Stop the replica; its data stays."""
        replica = self._replica(group)
        replica.halt()
        del self._replicas[group]
        replica.refuse_all(ShuttingDown(f"group {group} is being stopped on store {self.id}"))
        replica.applier.machine.close()

    def groups(self) -> list[int]:
        return sorted(self._replicas)

    def is_leading(self, group: int) -> bool:
        return self._replica(group).is_leader

    def leader(self, group: int) -> int:
        """The store that leads the group as far as this one knows; 0 for none."""
        return self._replica(group).leader

    # Proposals and reads

    def propose_batch(
        self,
        group: int,
        payloads: Sequence[bytes],
        done: ProposalDone,
        *,
        kind: EntryKind = _NORMAL,
    ) -> None:
        """Propose commands that follow one another; `done` is called once, perhaps much later.

        Raises what refuses them at once: `NotLeader`, `Overloaded`, `TooLarge`, `DiskFull`.
        """
        replica = self._replica(group)
        size = 0
        for payload in payloads:
            if not payload:
                raise InvalidInput("a command has at least one byte")
            size += len(payload)
        if size > self.settings.in_flight_bytes_max // 2:
            raise TooLarge(
                f"a proposal of {size} bytes is above the limit of "
                f"{self.settings.in_flight_bytes_max // 2}: split it"
            )
        if self._is_closing:
            raise ShuttingDown(f"store {self.id} is shutting down: propose to another")
        replica.propose(Batch([Entry(0, 0, kind, each) for each in payloads], size, done))
        self._turns.mark(replica)

    async def propose(
        self, group: int, payload: bytes, *, timeout_ms: int, kind: EntryKind = _NORMAL
    ) -> Any:
        """Propose one command and wait for its result."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def done(results: list[Any] | None, error: RaftwoodError | None) -> None:
            if not future.done():
                if results is None:
                    future.set_exception(error or Unavailable("the proposal was dropped"))
                else:
                    future.set_result(results[0])

        self.propose_batch(group, [payload], done, kind=kind)
        result = await self._within(future, timeout_ms, f"a proposal to group {group}")
        if isinstance(result, RaftwoodError):
            raise result
        return result

    async def read(self, group: int, query: Any, *, timeout_ms: int) -> Any:
        """Ask the state machine, with all that was answered to anybody before the call."""
        replica = self._replica(group)
        future: asyncio.Future[None] = self._loop.create_future()

        def done(error: RaftwoodError | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

        replica.read(done)
        self._turns.mark(replica)
        await self._within(future, timeout_ms, f"a read of group {group}")
        return replica.applier.machine.lookup(query)

    def stale_read(self, group: int, query: Any) -> Any:
        """Ask the state machine as it is here, which may be behind."""
        return self._replica(group).applier.machine.lookup(query)

    async def _within(self, future: "asyncio.Future[Any]", timeout_ms: int, what: str) -> Any:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError:
            raise DeadlineExceeded(f"{what} got no answer in {timeout_ms} ms") from None

    # What comes from other stores

    def _on_frame(self, peer: Identity, payload: Payload) -> None:
        store = store_of(peer)
        if not self._peers.heard(store):
            return
        replicas = self._replicas
        mark = self._turns.mark
        for group, message, runs in decode_frame(payload, target=self.id):
            if message.source != store:
                raise ProtocolError(f"store {store} speaks for store {message.source}")
            replica = replicas.get(group)
            if replica is not None and replica.is_serving:
                replica.receive(message, runs)
                mark(replica)

    def _on_introduction(self, peer: Identity, payload: Payload) -> None:
        store = store_of(peer)
        try:
            introduction = msgspec.msgpack.decode(payload, type=Introduction)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ProtocolError(f"store {store} does not introduce itself") from error
        known = self._peers.get(store)
        if known is None:
            return  # none of this store's groups knows it yet
        known.epoch = None
        self._book.admit(store, introduction.incarnation)
        known.epoch = introduction.epoch
        self._peers.heard(store)

    def _on_ping(self, peer: Identity, _: Payload) -> None:
        self._peers.heard(store_of(peer))

    # What replicas ask for

    def _on_role(self, replica: Replica) -> None:
        raft = replica.node.raft
        _log.info(
            "role", group=replica.group, role=raft.role.value, term=raft.term, leader=raft.lead
        )

    def _on_change(self, entry: Entry, configuration: ConfState) -> None:
        pass

    def _send_snapshot(self, replica: Replica, message: Message) -> None:
        raise NotImplementedError

    def _install_snapshot(
        self, replica: Replica, snapshot: Snapshot, done: Callable[[], None]
    ) -> None:
        raise NotImplementedError

    def _fetch(self, replica: Replica) -> None:
        """Bring entries into memory that a slow follower needs."""
        first = replica.storage.missed
        if first is None:
            return
        replica.is_fetching = True

        async def fetch() -> None:
            try:
                await replica.storage.fetch(first, self.settings.message_bytes_max * 8)
            finally:
                replica.is_fetching = False
                replica.storage.missed = None

        self._run(fetch(), f"entries of group {replica.group} from {first} on")

    def _on_store_lost(self, store: int) -> None:
        _log.warning("store lost", store=store)

    def _on_store_unreachable(self, store: int) -> None:
        for replica in self._replicas.values():
            if replica.is_leader and replica.is_serving:
                replica.node.report_unreachable(store)

    # Time

    async def _tick(self) -> None:
        settings = self.settings
        while True:
            await asyncio.sleep(settings.tick_ms / 1000)
            await self._peers.tick(settings.election_ticks)
            for replica in self._replicas.values():
                if replica.is_serving and not replica.is_asleep:
                    replica.tick()
                    if replica.backlog:
                        self._turns.retry(replica)
                    if replica.node.has_ready() or replica.reads:
                        self._turns.mark(replica)

    # The end

    async def close(self) -> None:
        """Stop at once; what is under way ends with `ShuttingDown`."""
        self._is_closing = True
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.wait([self._ticking])
        self._turns.close()
        self._outbox.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        await self._peers.close()
        for group in self.groups():
            await self.stop_group(group)
        await self._store.close()

    # Help

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))

    def _replica(self, group: int) -> Replica:
        replica = self._replicas.get(group)
        if replica is None:
            raise NotFound(f"group {group} does not run on store {self.id}")
        return replica

    def _set_addresses(self, addresses: dict[int, str]) -> None:
        others = {store: address for store, address in addresses.items() if store != self.id}
        self._book.set_addresses(others)
        for store, address in others.items():
            self._peers.set_address(store, address)

    def _check_open(self) -> None:
        if self._is_closing:
            raise ShuttingDown(f"store {self.id} is shutting down")


def _check(settings: RaftHostSettings, log: LogSettings) -> None:
    """A message's entries are written as a whole, so that they have to fit a write."""
    largest = settings.in_flight_bytes_max + settings.message_bytes_max
    if largest * 5 // 4 > log.write_bytes_max:
        raise InvalidConfiguration(
            f"in_flight_bytes_max and message_bytes_max ({largest} bytes) do not fit a write to "
            f"the log ({log.write_bytes_max} bytes): lower them, or raise segment_bytes"
        )
