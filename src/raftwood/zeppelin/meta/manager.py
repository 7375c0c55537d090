"""`ClusterManager`: expands, shrinks and balances a cluster; the meta server runs each plan in
steps.

    manager = ClusterManager(meta)
    plan = await manager.plan_expand()
    order = await manager.submit(plan)
    await manager.wait(order, told=print)

A submitted plan runs even if no caller waits for it; `progress` shows how far it is. The manager
has no state: it may stop after `submit`, and another one can wait or cancel.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final, TypeVar

import msgspec

from raftwood.base.errors import Conflict, DeadlineExceeded, NotFound, RaftwoodError
from raftwood.zeppelin.meta import plans
from raftwood.zeppelin.meta.changes import CancelMigration
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.meta.plans import CHANGES_PLANNED_MAX, ClusterPlan
from raftwood.zeppelin.meta.progress import MigrationProgress, progress_of
from raftwood.zeppelin.model import NodeId, Topology

Planner = Callable[[Topology], ClusterPlan]
Result = TypeVar("Result")

ATTEMPTS_MAX: Final = 10
WAIT_S: Final = 7 * 86_400.0
SILENCE_S: Final = 60.0
"""A caller that waits gives up when the meta server has not answered for so long."""
_POLL_S: Final = 0.5
_PAUSE_S: Final = 0.1
_SHARE_MAX: Final = 0.1
"""Share of the time that the queries of a waiting caller may take: answers about a large cluster
are long, and the meta server has to serve its nodes."""


class CancelledMigrations(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a request to cancel migrations."""

    epoch: int
    count: int
    """Partitions whose migrations ended."""
    too_late: tuple[str, ...] = ()
    """Why the others continue."""


class ClusterManager:
    """Plans changes of the topology; nothing happens before `submit`."""

    def __init__(self, meta: MetaClient) -> None:
        self._meta = meta

    # Plans

    async def plan_balance(self, *, table: str | None = None) -> ClusterPlan:
        return plans.balance(await self._meta.topology(), table=table)

    async def plan_expand(self, nodes: Collection[NodeId] = ()) -> ClusterPlan:
        return plans.expand(await self._meta.topology(), nodes)

    async def plan_drain(
        self, nodes: Collection[NodeId], *, fewer_domains: bool = False
    ) -> ClusterPlan:
        """Plans to empty nodes, which can then be stopped and forgotten."""
        topology = await self._meta.topology()
        return plans.drain(topology, nodes, fewer_domains=fewer_domains)

    async def plan_undo_drain(self, nodes: Collection[NodeId]) -> ClusterPlan:
        return plans.undo_drain(await self._meta.topology(), nodes)

    async def plan_replace(
        self, *, old: NodeId, new: NodeId, fewer_domains: bool = False
    ) -> ClusterPlan:
        topology = await self._meta.topology()
        return plans.replace_node(topology, old=old, new=new, fewer_domains=fewer_domains)

    async def plan_migrate(
        self, table: str, partition: int, *, source: NodeId, target: NodeId
    ) -> ClusterPlan:
        topology = await self._meta.topology()
        return plans.migrate(
            topology, table=table, partition=partition, source=source, target=target
        )

    async def plan_add_slave(self, table: str, partition: int, node: NodeId) -> ClusterPlan:
        topology = await self._meta.topology()
        return plans.add_slave(topology, table=table, partition=partition, node=node)

    async def plan_remove_slave(self, table: str, partition: int, node: NodeId) -> ClusterPlan:
        topology = await self._meta.topology()
        return plans.remove_slave(topology, table=table, partition=partition, node=node)

    async def plan_set_master(self, table: str, partition: int, node: NodeId) -> ClusterPlan:
        topology = await self._meta.topology()
        return plans.set_master(topology, table=table, partition=partition, node=node)

    async def plan_remove_nodes(self, nodes: Collection[NodeId]) -> ClusterPlan:
        return plans.remove_nodes(await self._meta.topology(), nodes)

    async def plan_double(self, table: str) -> ClusterPlan:
        return plans.double(await self._meta.topology(), table)

    # Orders

    async def submit(self, plan: ClusterPlan) -> int:
        """Submits a plan; returns the epoch in which it was ordered.

        Raises `Conflict` if the topology has changed since the plan was made: an operator orders
        exactly the plan that was shown (`test_a_plan_that_is_old_is_refused_as_a_whole`).
        """
        if not plan.changes:
            return plan.epoch
        return await self._meta.apply_planned(plan.epoch, *plan.changes)

    async def order(self, planner: Planner, *, epoch: int | None = None) -> tuple[ClusterPlan, int]:
        """Plans and submits. Plans anew if the topology has changed meanwhile, unless `epoch` names
        the topology of the plan.
        """
        for attempt in range(1, ATTEMPTS_MAX + 1):
            plan = planner(await self._meta.topology())
            check_epoch(plan, epoch)
            try:
                return plan, await self.submit(plan)
            except Conflict:
                if epoch is not None or attempt == ATTEMPTS_MAX:
                    raise
                # A hand-over in the way is over in a moment.
                await asyncio.sleep(_PAUSE_S)
        raise AssertionError("the last attempt returns or raises")

    async def progress(
        self, order: int | None = None, *, plan: ClusterPlan | None = None
    ) -> MigrationProgress:
        """Returns the progress of one order, by the epoch that `submit` returned, and of its plan's
        masters; else of all orders.
        """
        topology = await self._meta.topology()
        return progress_of(topology, await self._meta.reports(), order, plan=plan)

    async def wait(
        self,
        order: int | None = None,
        *,
        plan: ClusterPlan | None = None,
        timeout_s: float = WAIT_S,
        told: Callable[[MigrationProgress], None] = lambda _: None,
    ) -> MigrationProgress:
        """Waits until an order's migrations are over and, if its plan is given, its masters are in
        place and its new slaves have caught up.

        `DeadlineExceeded` only ends the waiting: the order continues.
        """

        async def look() -> MigrationProgress | None:
            found = await self.progress(order, plan=plan)
            told(found)
            is_left = found.moving or (plan is not None and (found.handovers or found.behind))
            return None if is_left else found

        return await _until(look, timeout_s)

    async def wait_doubled(
        self,
        table: str,
        *,
        timeout_s: float = WAIT_S,
        told: Callable[[int, int], None] = lambda _, __: None,
    ) -> int:
        """Waits until a table has all its partitions; returns how many."""

        async def look() -> int | None:
            found = (await self._meta.topology()).tables.get(table)
            if found is None:
                raise NotFound(f"there is no table {table!r}: check its name")
            told(len(found.partitions), found.config.partitions)
            return None if found.is_doubling else len(found.partitions)

        return await _until(look, timeout_s)

    async def cancel(
        self,
        *,
        table: str | None = None,
        partition: int | None = None,
        order: int | None = None,
    ) -> CancelledMigrations:
        """Cancels migrations: of one partition, of a table, of one order, or all."""
        topology = await self._meta.topology()
        changes = [
            CancelMigration(name, number)
            for name, found in sorted(topology.tables.items())
            if table in (None, name)
            for number, each in enumerate(found.partitions)
            if partition in (None, number)
            and each.migration is not None
            and order in (None, each.migration.plan)
        ]
        if not changes:
            raise NotFound("nothing of that moves: look at the status")
        epoch = topology.epoch
        refused: list[str] = []
        for begin in range(0, len(changes), CHANGES_PLANNED_MAX):
            # Each change by itself: migrations that are over by now, or whose target is already
            # master, continue and do not keep the others from ending.
            done = await self._meta.apply(*changes[begin : begin + CHANGES_PLANNED_MAX])
            epoch = done.epoch
            refused += [each.message for each in done.results if each is not None]
        return CancelledMigrations(
            epoch=epoch, count=len(changes) - len(refused), too_late=tuple(refused)
        )


def check_epoch(plan: ClusterPlan, epoch: int | None) -> None:
    if epoch is not None and plan.epoch != epoch:
        raise Conflict(
            f"the topology has changed since epoch {epoch} and is at {plan.epoch}: look at the "
            "plan anew"
        )


async def _until(look: Callable[[], Awaitable[Result | None]], timeout_s: float) -> Result:
    """Polls until there is a result; tolerates retriable errors for a while.

    A leader of the meta server may change while an operator waits for a move of hours.
    """
    loop = asyncio.get_running_loop()
    heard_at = loop.time()
    deadline = heard_at + timeout_s
    while True:
        asked_at = loop.time()
        try:
            found = await look()
            heard_at = loop.time()
        except RaftwoodError as error:
            if not error.retriable or loop.time() - heard_at > SILENCE_S:
                raise
            found = None
        if found is not None:
            return found
        if loop.time() >= deadline:
            raise DeadlineExceeded("it is not over yet and goes on: look at its progress later")
        pause_s = max(_POLL_S, (loop.time() - asked_at) / _SHARE_MAX)
        await asyncio.sleep(min(pause_s, max(0.0, deadline - loop.time())))
