"""The store's replica of HAKeeper: serves its requests, and does the leader's work each tick.

The leader advances the clock, sets the cluster up, and plans. It also plans as soon as a request
changes something, and notifies the stores of waiting orders: otherwise a new shard would take a
tick and a heartbeat to begin.
"""

from collections.abc import Callable, Mapping
from typing import Final

from raftwood.base.errors import InvalidInput, NotFound, NotLeader, RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.hakeeper.commands import (
    AddGuests,
    AllocateIds,
    HearService,
    HearStore,
    InitialCluster,
    KeeperCommand,
    KeeperTick,
    Schedule,
    Scheduled,
    SetInitialCluster,
    check_command,
    decode_command,
    decode_id,
    decode_orders,
    decode_result,
    encode_command,
)
from raftwood.logservice.hakeeper.messages import (
    HAKEEPER_SHARD,
    Orders,
    ServiceHeartbeat,
    StoreHeartbeat,
)
from raftwood.logservice.hakeeper.state import ClusterPhase, KeeperState
from raftwood.logservice.hakeeper.state_machine import HaKeeperStateMachine
from raftwood.logservice.server.heartbeats import Pacer
from raftwood.logservice.settings import HaKeeperSettings
from raftwood.logservice.wire import (
    ALLOCATE_IDS,
    KEEPER_COMMAND,
    KEEPER_QUERY,
    ORDERS_WAIT,
    SERVICE_HEARTBEAT,
    STORE_HEARTBEAT,
)
from raftwood.net import Call, Payload, Service
from raftwood.net.identity import store_of
from raftwood.raft.node_host import NodeHost

_log = get_logger("hakeeper")


class KeeperDriver:
    """Runs on every store, and works while the store leads HAKeeper."""

    def __init__(
        self,
        host: NodeHost,
        settings: HaKeeperSettings,
        first_members: Mapping[int, str],
        guests: Mapping[int, str],
        version: str,
        tell: Callable[[int], None],
    ) -> None:
        """`tell` notifies a store that orders wait for it."""
        self._host = host
        self._settings = settings
        self._first_members = dict(first_members)
        self._guests = dict(guests)
        self._version = version
        self._tell = tell
        self._pacing = Pacer(settings.tick_ms)

    async def run(self) -> None:
        while True:
            is_tick = await self._pacing.wait()
            try:
                await self._work(is_tick=is_tick)
            except RaftwoodError as error:
                _log.debug("no tick", reason=error.message)

    def plan_soon(self) -> None:
        """Plans before the next tick: a request may need orders."""
        self._pacing.ask()

    async def _work(self, *, is_tick: bool) -> None:
        host = self._host
        if HAKEEPER_SHARD not in host.groups() or not host.is_leading(HAKEEPER_SHARD):
            return
        machine = host.machine(HAKEEPER_SHARD)
        assert isinstance(machine, HaKeeperStateMachine)
        term = host.status(HAKEEPER_SHARD).term
        if is_tick:
            await self._propose(machine.tick_command())
        if machine.state.phase is ClusterPhase.CREATED:
            await self._set_initial_cluster()
        elif is_tick:
            await self._add_guests(machine.state)
        command = machine.schedule_command(term)
        if command is None:
            return
        result = decode_result(await self._propose(command))
        if isinstance(result, Scheduled) and result.taken:
            for store in sorted({order.to_store for order in machine.state.orders.values()}):
                self._tell(store)

    async def _set_initial_cluster(self) -> None:
        settings = self._settings
        stores = len(self._first_members)
        if not stores:
            return
        result = decode_result(
            await self._propose(
                encode_command(
                    SetInitialCluster(
                        log_shards=settings.log_shards,
                        tn_shards=settings.tn_shards,
                        log_replicas=min(settings.log_replicas, stores),
                        hakeeper_replicas=min(settings.hakeeper_replicas, stores),
                        members=self._first_members,
                        guests=self._guests,
                    )
                )
            )
        )
        if isinstance(result, InitialCluster) and result.is_first:
            _log.info("initial cluster", shards=settings.log_shards, stores=stores)

    async def _add_guests(self, state: KeeperState) -> None:
        """Adds guests that a cluster of an older program lacks, once no store runs that program any
        more: it could not carry this out.
        """
        missing = {each: name for each, name in self._guests.items() if each not in state.shards}
        if missing and all(each.version == self._version for each in state.stores.values()):
            decode_result(await self._propose(encode_command(AddGuests(missing))))
            _log.info("guests begin", names=sorted(missing.values()))

    async def _propose(self, command: bytes) -> bytes:
        timeout_ms = self._settings.tick_ms * 10
        return bytes(await self._host.propose(HAKEEPER_SHARD, command, timeout_ms=timeout_ms))


TIMEOUT_MS: Final = 5_000
_NO_OPERATORS: Final = (KeeperTick, Schedule, HearStore, SetInitialCluster, AddGuests)
"""Only for HAKeeper's leader and heartbeats: a batch of a far term would end all planning."""


class KeeperService:
    """Serves HAKeeper if this store has a replica of it; else names the store that may lead it."""

    def __init__(
        self,
        host: NodeHost,
        keeper: KeeperClient,
        *,
        plan_soon: Callable[[], None],
        beat_soon: Callable[[], None],
    ) -> None:
        """`plan_soon` runs the leader's planner; `beat_soon` fetches orders for this store."""
        self._host = host
        self._keeper = keeper
        self._plan_soon = plan_soon
        self._beat_soon = beat_soon

    def register(self, service: Service) -> None:
        service.typed(STORE_HEARTBEAT, self._hear_store)
        service.typed(SERVICE_HEARTBEAT, self._hear_service)
        service.typed(ALLOCATE_IDS, self._allocate)
        service.task(KEEPER_COMMAND, self._command)
        service.fast(ORDERS_WAIT, self._orders_wait)
        service.task(KEEPER_QUERY, self._query)

    async def _hear_store(self, call: Call, heartbeat: StoreHeartbeat) -> Orders:
        if store_of(call.peer) != heartbeat.store:
            raise InvalidInput(f"store {call.peer.node_id} speaks for store {heartbeat.store}")
        return decode_orders(await self._propose(HearStore(heartbeat)))

    async def _hear_service(self, _: Call, heartbeat: ServiceHeartbeat) -> Orders:
        return decode_orders(await self._propose(HearService(heartbeat)))

    async def _allocate(self, _: Call, count: int) -> int:
        return decode_id(await self._propose(AllocateIds(count)))

    async def _command(self, _: Call, payload: Payload) -> bytes:
        command = decode_command(bytes(payload))
        if isinstance(command, _NO_OPERATORS):
            raise InvalidInput(f"{type(command).__name__} is no operator's word")
        result = await self._propose(command)
        self._plan_soon()
        return result

    def _orders_wait(self, call: Call, _: Payload) -> None:
        self._beat_soon()
        call.reply()

    async def _propose(self, command: KeeperCommand) -> bytes:
        check_command(command)
        try:
            result = await self._host.propose(
                HAKEEPER_SHARD, encode_command(command), timeout_ms=TIMEOUT_MS
            )
        except NotFound as error:
            raise self._elsewhere() from error
        return bytes(result)

    async def _query(self, _: Call, payload: Payload) -> bytes:
        try:
            answer = await self._host.read(HAKEEPER_SHARD, bytes(payload), timeout_ms=TIMEOUT_MS)
        except NotFound as error:
            raise self._elsewhere() from error
        return bytes(answer)

    def _elsewhere(self) -> RaftwoodError:
        leader = self._keeper.leader
        leader = 0 if leader == self._host.id else leader
        return NotLeader(f"store {self._host.id} has no replica of HAKeeper", leader)
