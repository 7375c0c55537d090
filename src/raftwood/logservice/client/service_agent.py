"""`ServiceAgent`: a service that uses the log keeps in touch with HAKeeper.

    agent = ServiceAgent(keeper, service="tn-1", kind=ServiceKind.TN, address="10.0.0.5:7000",
                         carry_out=carry_out)
    await agent.run()

It says each second that the service is there and which TN shards it has. Orders are handed to the
callback, one at a time, and acknowledged with the next heartbeat; heartbeats go on meanwhile. An
order may come again where its acknowledgement was lost: carrying it out twice must do no harm.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from raftwood.base.errors import RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.hakeeper.orders import Order, OrderKind, Orders
from raftwood.logservice.hakeeper.reports import (
    FinishedOrder,
    ServiceHeartbeat,
    ServiceKind,
    TnReplicaReport,
)

PERIOD_MS: Final = 1_000
WAITING_MAX: Final = 1_000
ERROR_LENGTH_MAX: Final = 1_000

CarryOut = Callable[[Order], Awaitable[None]]
"""Adds or removes a TN shard, or shuts the service's work down; a `RaftwoodError` is reported."""

_log = get_logger("service-agent")


class ServiceAgent:
    """`run` ends when HAKeeper has ordered a shutdown and that was carried out.

    On `ADD_TN_SHARD` the callback takes the lease of the log shard as `order.holder`, and writes
    under it from then on. On `SHUTDOWN_SERVICE` all work was given to others: let go of it, and
    begin anew, with another agent, if there is a point.
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
        """Keep in touch until a shutdown is ordered, or the task is cancelled."""
        working = asyncio.create_task(self._work(), name=f"orders of {self._service}")
        try:
            while not working.done():
                await self.beat()
                await asyncio.wait([working], timeout=self._period_ms / 1000)
            # A bug in the callback ends the agent; so HAKeeper gives its work to others.
            working.result()
            await self.beat()
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def beat(self) -> None:
        """One heartbeat, and its answer taken in; silence is noted, and no error."""
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
        """A heartbeat's answer; one of an older term than seen before is ignored."""
        if orders.term < self._term:
            _log.info("orders of an older term ignored", term=orders.term, known=self._term)
            return
        self._term = orders.term
        if self._is_shut_down:
            return
        # What has not begun and comes no more is not wanted any more.
        current = self._current.id if self._current is not None else 0
        self._waiting = deque(
            order
            for order in orders.orders[:WAITING_MAX]
            if order.id != current and order.id not in self._finished
        )
        if self._waiting:
            self._came.set()

    async def _work(self) -> None:
        """Carry orders out, in the order of their numbers, until a shutdown."""
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
