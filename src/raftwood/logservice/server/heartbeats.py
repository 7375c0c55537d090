"""A store's heartbeats to HAKeeper, and the execution of the orders that answer them.

HAKeeper repeats an order with every answer until it is acknowledged. The store carries out each
order number once while it is repeated, and one shard's orders one after the other.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from raftwood.base.errors import Conflict, InvalidInput, RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.hakeeper.commands import ALARMS_MAX, TEXT_MAX
from raftwood.logservice.hakeeper.messages import (
    FinishedOrder,
    Order,
    OrderKind,
    Orders,
    ShardReplicaReport,
    StoreHeartbeat,
)
from raftwood.logservice.server.disk_watch import DiskWatch
from raftwood.logservice.server.truncation import ShardStorage
from raftwood.raft.membership import MemberAction, MemberStep
from raftwood.raft.node_host import GroupStatus, NodeHost
from raftwood.raft.state_machine import StateMachine

GATHER_S: Final = 0.01
"""Requests within this time of the first one are served together with it."""
REST_SHARE: Final = 9
"""Between requested pieces of work the pacer rests this many times the last one's duration."""


class Pacer:
    """Paces repeated work: call `wait` before each piece."""

    def __init__(self, period_ms: int) -> None:
        self._period_s = period_ms / 1000
        self._asked = asyncio.Event()
        self._began: float | None = None
        self._due = 0.0
        """When the period ends."""

    def ask(self) -> None:
        """Asks for the work to be done soon."""
        self._asked.set()

    async def wait(self) -> bool:
        """Waits until the period ends (returns True), or until `ask` is called (returns False)."""
        loop = asyncio.get_running_loop()
        if self._began is None:
            self._began = self._due = loop.time()
        took_s = loop.time() - self._began
        try:
            async with asyncio.timeout_at(self._due):
                await asyncio.sleep(REST_SHARE * took_s)
                await self._asked.wait()
                await asyncio.sleep(GATHER_S)
        except TimeoutError:
            is_over = True
        else:
            is_over = False
        self._asked.clear()
        self._began = loop.time()
        if is_over:
            self._due = self._began + self._period_s
        return is_over


CHANGE_MS: Final = 10_000
TRANSFER_MS: Final = 5_000
UNDER_WAY_MAX: Final = 1_000

_orders_log = get_logger("orders")


class OrderExecutor:
    """Carries orders out; `factory_of` makes the state machine of a shard."""

    def __init__(
        self, host: NodeHost, factory_of: Callable[[int], Callable[[], StateMachine]]
    ) -> None:
        self._host = host
        self._factory_of = factory_of
        self._term = 0
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        self._finished: dict[int, FinishedOrder] = {}
        self._wanted: set[int] = set()
        """Orders of the newest answer: no others are begun."""

    def finished(self) -> tuple[FinishedOrder, ...]:
        """The orders to acknowledge with the next heartbeat.

        HAKeeper judges by that heartbeat: orders not yet begun wait for its answer.
        """
        self._wanted.clear()
        return tuple(self._finished.values())

    def take(self, orders: Orders, acknowledged: tuple[FinishedOrder, ...]) -> None:
        """Takes the answer to a heartbeat, which carried the acknowledgements `acknowledged`."""
        for each in acknowledged:
            self._finished.pop(each.order, None)
        if orders.term < self._term:
            _orders_log.info("orders of an older term ignored", term=orders.term, known=self._term)
            return
        self._term = orders.term
        self._wanted = {order.id for order in orders.orders}
        for order in orders.orders:
            is_known = order.id in self._under_way or order.id in self._finished
            if not is_known and len(self._under_way) < UNDER_WAY_MAX:
                self._under_way[order.id] = asyncio.create_task(
                    self._carry_out(order), name=f"order {order.id}"
                )

    async def close(self) -> None:
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry_out(self, order: Order) -> None:
        error = ""
        try:
            async with self._locks.setdefault(order.shard, asyncio.Lock()):
                if order.id not in self._wanted:
                    return
                await self._do(order)
        except RaftwoodError as failure:
            error = failure.message[:1000]
        finally:
            self._under_way.pop(order.id, None)
        self._finished[order.id] = FinishedOrder(order.id, error)
        _orders_log.info(
            "order", id=order.id, kind=order.kind.value, shard=order.shard, error=error or None
        )

    async def _do(self, order: Order) -> None:
        host, shard = self._host, order.shard
        match order.kind:
            case OrderKind.BOOTSTRAP_SHARD:
                if not self._is_here(shard):
                    await host.start_group(shard, self._factory_of(shard), members=order.members)
                    host.begin_soon(shard)
            case OrderKind.START_REPLICA:
                if not self._is_here(shard):
                    await host.start_group(shard, self._factory_of(shard))
            case OrderKind.STOP_REPLICA:
                if self._is_here(shard):
                    await host.stop_group(shard)
            case OrderKind.KILL_ZOMBIE:
                await self._kill(order)
            case OrderKind.TRANSFER_LEADER:
                await host.transfer_leadership(shard, order.store, timeout_ms=TRANSFER_MS)
            case OrderKind.ADD_LEARNER | OrderKind.ADD_VOTER | OrderKind.REMOVE_MEMBER:
                await self._change(order)
            case _:
                raise InvalidInput(f"{order.kind.value} is no order for a store")

    def _is_here(self, shard: int) -> bool:
        return shard in self._host.groups() or shard in self._host.halted()

    async def _kill(self, order: Order) -> None:
        shard = order.shard
        if shard in self._host.halted():
            await self._host.stop_group(shard)  # its repair, which no member will answer
        if shard in self._host.groups():
            _check_zombie(order, self._host.status(shard))
            await self._host.remove_replica(shard)

    async def _change(self, order: Order) -> None:
        status = self._host.status(order.shard)
        if _is_done(order, status):
            return
        if status.epoch != order.epoch:
            raise Conflict(f"the members changed since: epoch {status.epoch}, not {order.epoch}")
        await self._host.change_members(order.shard, _steps(order), timeout_ms=CHANGE_MS)


def _check_zombie(order: Order, status: GroupStatus) -> None:
    """Refuses if this replica is a member: HAKeeper may not know of the newest change yet."""
    is_member = status.store in (*status.voters, *status.learners)
    if is_member and status.epoch >= order.epoch:
        raise Conflict(f"store {status.store} is a member of shard {order.shard} by now")


def _steps(order: Order) -> list[MemberStep]:
    match order.kind:
        case OrderKind.ADD_LEARNER:
            return [MemberStep(MemberAction.ADD_LEARNER, order.store, order.address)]
        case OrderKind.ADD_VOTER:
            steps = [MemberStep(MemberAction.ADD_VOTER, order.store, order.address)]
            if order.removed:
                steps.append(MemberStep(MemberAction.REMOVE, order.removed))
            return steps
        case _:
            return [MemberStep(MemberAction.REMOVE, order.store)]


def _is_done(order: Order, status: GroupStatus) -> bool:
    members = (*status.voters, *status.learners)
    match order.kind:
        case OrderKind.ADD_LEARNER:
            return order.store in members
        case OrderKind.ADD_VOTER:
            return order.store in status.voters and order.removed not in members
        case _:
            return order.store not in members


UNANSWERED_TOLD: Final = 3
"""Unanswered heartbeats in a row after which a warning is logged."""

_log = get_logger("heartbeats")


class Heartbeats:
    """Sends a store's heartbeats."""

    def __init__(
        self,
        host: NodeHost,
        keeper: KeeperClient,
        executor: OrderExecutor,
        disk: DiskWatch,
        *,
        address: str,
        failure_domain: str,
        version: str,
        period_ms: int,
        alarms: Callable[[], Sequence[str]],
        storage_of: Callable[[int], ShardStorage | None],
    ) -> None:
        self._host = host
        self._keeper = keeper
        self._executor = executor
        self._disk = disk
        self._address = address
        self._failure_domain = failure_domain
        self._version = version
        self._period_ms = period_ms
        self._pacing = Pacer(period_ms)
        self._alarms = alarms
        self._storage_of = storage_of
        self.is_heard = False
        """Whether HAKeeper answered the last heartbeat."""
        self._unanswered = 0

    async def run(self) -> None:
        while True:
            await self._pacing.wait()
            await self.beat()

    def soon(self) -> None:
        """Sends the next heartbeat soon: orders wait at HAKeeper."""
        self._pacing.ask()

    async def beat(self) -> None:
        heartbeat = self._heartbeat()
        try:
            orders = await self._keeper.store_heartbeat(heartbeat, timeout_ms=self._period_ms * 3)
        except RaftwoodError as error:
            self.is_heard = False
            self._unanswered += 1
            # A single failure is usual, at the start and at elections.
            if self._unanswered == UNANSWERED_TOLD:
                _log.warning("HAKeeper does not answer", reason=error.message)
            return
        if self._unanswered >= UNANSWERED_TOLD:
            _log.info("HAKeeper answers")
        self.is_heard, self._unanswered = True, 0
        self._executor.take(orders, heartbeat.finished)

    def _heartbeat(self) -> StoreHeartbeat:
        host = self._host
        shards = sorted({*host.groups(), *host.halted()})
        return StoreHeartbeat(
            store=host.id,
            address=self._address,
            failure_domain=self._failure_domain,
            incarnation=host.incarnation,
            version=self._version,
            replicas=tuple(self._report(host.status(shard)) for shard in shards),
            finished=self._executor.finished(),
            alarms=limited_alarms(self._alarms()),
            disk_bytes=self._disk.disk_bytes,
            disk_free_bytes=self._disk.free_bytes,
            is_short=self._disk.is_short,
        )

    def _report(self, status: GroupStatus) -> ShardReplicaReport:
        # The lag of a member that never answered this leader is unknown, and left out: in a short
        # log it would seem small.
        storage = self._storage_of(status.group)
        return ShardReplicaReport(
            shard=status.group,
            epoch=status.epoch,
            voters=status.voters,
            learners=status.learners,
            leader=status.leader,
            term=status.term,
            applied=status.applied,
            lagging={
                store: max(0, status.last_index - match)
                for store, match in status.matches.items()
                if store != status.store and match
            },
            problem=status.problem[:TEXT_MAX],
            retained_bytes=storage.retained_bytes if storage else 0,
            is_joint=status.is_joint,
        )


def limited_alarms(alarms: Sequence[str]) -> tuple[str, ...]:
    """As many alarms as HAKeeper takes: too many must not make it refuse the heartbeat."""
    told = [alarm[:TEXT_MAX] for alarm in alarms[:ALARMS_MAX]]
    if len(alarms) > ALARMS_MAX:
        told[-1] = f"more-alarms: {len(alarms) - ALARMS_MAX + 1} more on this store"
    return tuple(told)
