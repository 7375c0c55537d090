"""The store's side of HAKeeper: heartbeats, commands and questions, handed to its raft group."""

from collections.abc import Callable
from typing import Final

from raftwood.base.errors import InvalidInput, NotFound, NotLeader, RaftwoodError
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.hakeeper.commands import (
    AddGuests,
    AllocateIds,
    Command,
    HearService,
    HearStore,
    Schedule,
    SetInitialCluster,
    Tick,
    check_command,
    decode_command,
    decode_id,
    decode_orders,
    encode_command,
)
from raftwood.logservice.hakeeper.orders import Orders
from raftwood.logservice.hakeeper.reports import (
    HAKEEPER_SHARD,
    ServiceHeartbeat,
    StoreHeartbeat,
)
from raftwood.logservice.wire import (
    ALLOCATE_IDS,
    KEEPER_COMMAND,
    KEEPER_QUERY,
    ORDERS_WAIT,
    SERVICE_HEARTBEAT,
    STORE_HEARTBEAT,
)
from raftwood.net import Call, Payload, Service
from raftwood.net.store_names import store_of
from raftwood.raft.host.host import Host

TIMEOUT_MS: Final = 5_000
_NO_OPERATORS: Final = (Tick, Schedule, HearStore, SetInitialCluster, AddGuests)
"""Said by HAKeeper's leader, or as heartbeats: a batch of some far term would end all planning."""


class KeeperService:
    """Serves HAKeeper where this store has a replica of it; else tells who may lead it."""

    def __init__(
        self,
        host: Host,
        keeper: KeeperClient,
        *,
        plan_soon: Callable[[], None],
        beat_soon: Callable[[], None],
    ) -> None:
        """`plan_soon` is for the leader, and `beat_soon` for a store that is told of orders."""
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

    async def _propose(self, command: Command) -> bytes:
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
