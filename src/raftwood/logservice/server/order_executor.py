"""HAKeeper's orders to this store, carried out and acknowledged.

An order comes with every heartbeat's answer until it is acknowledged. It is carried out once per
number for as long as it comes; one shard's orders one after the other.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from raftwood.base.errors import Conflict, InvalidInput, RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.logservice.hakeeper.orders import Order, OrderKind, Orders
from raftwood.logservice.hakeeper.reports import FinishedOrder
from raftwood.raft.host.host import Host
from raftwood.raft.host.membership import MemberAction, MemberStep
from raftwood.raft.host.status import GroupStatus
from raftwood.raft.state_machine import StateMachine

CHANGE_MS: Final = 10_000
TRANSFER_MS: Final = 5_000
UNDER_WAY_MAX: Final = 1_000

_log = get_logger("orders")


class OrderExecutor:
    """`factory_of` makes the state machine of a shard."""

    def __init__(self, host: Host, factory_of: Callable[[int], Callable[[], StateMachine]]) -> None:
        self._host = host
        self._factory_of = factory_of
        self._term = 0
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        self._finished: dict[int, FinishedOrder] = {}
        self._wanted: set[int] = set()
        """Orders of the newest answer: others are not begun any more."""

    def finished(self) -> tuple[FinishedOrder, ...]:
        """What is to be acknowledged with the next heartbeat.

        HAKeeper judges by that heartbeat: what has not begun waits for its answer.
        """
        self._wanted.clear()
        return tuple(self._finished.values())

    def take(self, orders: Orders, acknowledged: tuple[FinishedOrder, ...]) -> None:
        """A heartbeat's answer; `acknowledged` is what that heartbeat told."""
        for each in acknowledged:
            self._finished.pop(each.order, None)
        if orders.term < self._term:
            _log.info("orders of an older term ignored", term=orders.term, known=self._term)
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
        _log.info(
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
            await self._host.stop_group(shard)  # its repair, which nobody will answer
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
    """HAKeeper may not have heard yet of a change that made this replica a member."""
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
