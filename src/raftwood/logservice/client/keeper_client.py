"""HAKeeper's clients: `KeeperClient` for requests, `ServiceAgent` for a service's heartbeats.

    agent = ServiceAgent(keeper, service="tn-1", kind=ServiceKind.TN, address="10.0.0.5:7000",
                         carry_out=carry_out)
    await agent.run()

An agent reports each second that the service lives and which TN shards it has. It hands orders to
the callback, one at a time, and acknowledges them with the next heartbeat; heartbeats continue
meanwhile. HAKeeper repeats an order if its acknowledgement was lost: carrying it out twice must do
no harm.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from raftwood.base.errors import RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.logservice.client.shard_link import ShardLink
from raftwood.logservice.hakeeper.commands import (
    AnswerType,
    ClusterView,
    DescribeCluster,
    FindShard,
    KeeperCommand,
    KeeperQuery,
    KeeperShardView,
    KeeperSuccess,
    ListLogs,
    LogNames,
    check_command,
    decode_answer,
    decode_id,
    decode_result,
    encode_command,
    encode_query,
)
from raftwood.logservice.hakeeper.messages import (
    HAKEEPER_SHARD,
    FinishedOrder,
    Order,
    OrderKind,
    Orders,
    ServiceHeartbeat,
    ServiceKind,
    StoreHeartbeat,
    TnReplicaReport,
)
from raftwood.logservice.wire import (
    ALLOCATE_IDS,
    KEEPER_COMMAND,
    KEEPER_QUERY,
    SERVICE_HEARTBEAT,
    STORE_HEARTBEAT,
)
from raftwood.net.stores import Stores

TIMEOUT_MS: Final = 10_000


class KeeperClient:
    """Sends requests over shared connections; HAKeeper may carry out any call more than once."""

    def __init__(self, stores: Stores, *, timeout_ms: int = TIMEOUT_MS) -> None:
        self._link = ShardLink(stores, HAKEEPER_SHARD)
        self._timeout_ms = timeout_ms

    @property
    def leader(self) -> int:
        """The store that leads HAKeeper, as far as this client knows; else any store."""
        return self._link.guess()

    async def command(self, command: KeeperCommand) -> KeeperSuccess:
        """Changes the cluster, for operators; raises the command's own errors."""
        check_command(command)
        return decode_result(await self._command(command))

    async def number(self, command: KeeperCommand) -> int:
        """Like `command`, for one that creates something: returns its number."""
        check_command(command)
        return decode_id(await self._command(command))

    async def _command(self, command: KeeperCommand) -> bytes:
        answer = await self._link.ask_raw(
            KEEPER_COMMAND, encode_command(command), timeout_ms=self._timeout_ms
        )
        return bytes(answer)

    async def query(self, query: KeeperQuery, expected: type[AnswerType]) -> AnswerType:
        answer = await self._link.ask_raw(
            KEEPER_QUERY, encode_query(query), timeout_ms=self._timeout_ms
        )
        return decode_answer(bytes(answer), expected)

    async def describe(self) -> ClusterView:
        return await self.query(DescribeCluster(), ClusterView)

    async def find_shard(self, shard: int | str) -> KeeperShardView:
        query = FindShard(shard) if isinstance(shard, int) else FindShard(name=shard)
        return await self.query(query, KeeperShardView)

    async def log_names(self, prefix: str) -> list[str]:
        """Returns the names of logs that begin with `prefix`, in order."""
        return (await self.query(ListLogs(prefix), LogNames)).names

    async def store_heartbeat(self, heartbeat: StoreHeartbeat, *, timeout_ms: int) -> Orders:
        return await self._link.ask(STORE_HEARTBEAT, heartbeat, timeout_ms=timeout_ms)

    async def service_heartbeat(self, heartbeat: ServiceHeartbeat, *, timeout_ms: int) -> Orders:
        """Sends a service's heartbeat; returns the orders for the service."""
        return await self._link.ask(SERVICE_HEARTBEAT, heartbeat, timeout_ms=timeout_ms)

    async def allocate_ids(self, count: int = 1) -> int:
        """Reserves `count` unique numbers; returns the first."""
        return await self._link.ask(ALLOCATE_IDS, count, timeout_ms=self._timeout_ms)

    async def close(self) -> None:
        await self._link.close()


PERIOD_MS: Final = 1_000
WAITING_MAX: Final = 1_000
ERROR_LENGTH_MAX: Final = 1_000

CarryOut = Callable[[Order], Awaitable[None]]
"""Adds or removes a TN shard, or shuts the service's work down; a `RaftwoodError` is reported."""

_log = get_logger("service-agent")


class ServiceAgent:
    """Keeps a service in touch with HAKeeper; `run` ends after it has carried out a shutdown.

    On `ADD_TN_SHARD` the callback takes the lease of the log shard as `order.holder`, and writes
    under it from then on. On `SHUTDOWN_SERVICE` HAKeeper has given all work to others: the service
    stops its work and may start again with a new agent.
    """

    def __init__(
        self,
        keeper: KeeperClient,
        *,
        service: str,
        kind: ServiceKind,
        address: str,
        carry_out: CarryOut,
        labels: Mapping[str, str] | None = None,
        period_ms: int = PERIOD_MS,
    ) -> None:
        self._keeper = keeper
        self._service = service
        self._kind = kind
        self._address = address
        self._labels = dict(labels or {})
        self._carry_out = carry_out
        self._period_ms = period_ms
        self._term = 0
        self._waiting: deque[Order] = deque()
        self._came = asyncio.Event()
        self._current: Order | None = None
        self._finished: dict[int, FinishedOrder] = {}
        self._replicas: dict[int, TnReplicaReport] = {}
        self._is_shut_down = False
        self.is_heard = False
        """Whether HAKeeper answered the last heartbeat."""

    @property
    def replicas(self) -> tuple[TnReplicaReport, ...]:
        """The TN shards that the service has, as it reports them."""
        return tuple(self._replicas[number] for number in sorted(self._replicas))

    async def run(self) -> None:
        """Sends heartbeats until HAKeeper orders a shutdown, or the task is cancelled."""
        working = asyncio.create_task(self._work(), name=f"orders of {self._service}")
        try:
            while not working.done():
                await self.beat()
                await asyncio.wait([working], timeout=self._period_ms / 1000)
            # A bug in the callback ends the agent, so that HAKeeper gives its work to others.
            working.result()
            await self.beat()
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def beat(self) -> None:
        """Sends one heartbeat and takes the answer; notes a missing one, and raises nothing."""
        finished = tuple(self._finished.values())
        heartbeat = ServiceHeartbeat(
            self._service, self._kind, self._address, self._labels, self.replicas, finished
        )
        try:
            orders = await self._keeper.service_heartbeat(heartbeat, timeout_ms=self._period_ms * 3)
        except RaftwoodError as error:
            if self.is_heard:
                _log.warning("HAKeeper does not answer", reason=error.message)
            self.is_heard = False
            return
        self.is_heard = True
        for each in finished:
            self._finished.pop(each.order, None)
        self.take(orders)

    def take(self, orders: Orders) -> None:
        """Takes the orders of an answer; ignores those of an older term than seen before."""
        if orders.term < self._term:
            _log.info("orders of an older term ignored", term=orders.term, known=self._term)
            return
        self._term = orders.term
        if self._is_shut_down:
            return
        # An order that has not begun and is no longer repeated is no longer wanted.
        current = self._current.id if self._current is not None else 0
        self._waiting = deque(
            order
            for order in orders.orders[:WAITING_MAX]
            if order.id != current and order.id not in self._finished
        )
        if self._waiting:
            self._came.set()

    async def _work(self) -> None:
        """Carries orders out, in the order of their numbers, until a shutdown."""
        while not self._is_shut_down:
            while not self._waiting:
                self._came.clear()
                await self._came.wait()
            order = self._current = self._waiting.popleft()
            error = ""
            try:
                await self._carry_out(order)
            except RaftwoodError as failure:
                error = failure.message[:ERROR_LENGTH_MAX]
            finally:
                self._current = None
            self._finished[order.id] = FinishedOrder(order.id, error)
            if not error:
                self._note(order)
            _log.info("order", id=order.id, kind=order.kind.value, error=error or None)

    def _note(self, order: Order) -> None:
        match order.kind:
            case OrderKind.ADD_TN_SHARD:
                report = TnReplicaReport(order.tn_shard, order.shard, order.holder)
                self._replicas[order.tn_shard] = report
            case OrderKind.REMOVE_TN_SHARD:
                self._replicas.pop(order.tn_shard, None)
            case OrderKind.SHUTDOWN_SERVICE:
                self._replicas.clear()
                self._is_shut_down = True
            case _:
                pass
