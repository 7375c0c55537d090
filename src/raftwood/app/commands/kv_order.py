"""How a change of a cluster is shown, ordered and waited for, whichever it is."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from cyclopts import Parameter

from raftwood.app.bar import Bar
from raftwood.app.commands.confirmation import is_confirmed
from raftwood.app.commands.kv_target import KV, KvTarget
from raftwood.app.kv_plans import MoveBar, plan_data, show_plan
from raftwood.app.output import write_json, write_line
from raftwood.base.environment import Environment
from raftwood.base.errors import Conflict
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.meta.manager import ClusterManager, Planner, check_epoch
from raftwood.zeppelin.meta.plans.plan import Plan
from raftwood.zeppelin.meta.plans.progress import Progress, is_under_way, unmoved


@Parameter(name="*")
@dataclass(frozen=True)
class Order:
    """What is common to all that change a cluster."""

    dry_run: Annotated[
        bool, Parameter(help="Show what would be done, and do nothing.", negative=())
    ] = False
    epoch: Annotated[
        int | None,
        Parameter(help="Do it only if nothing has changed since this epoch, which a plan shows."),
    ] = None
    wait: Annotated[
        bool, Parameter(help="Wait until it is done; it goes on without anybody waiting, too.")
    ] = True
    target: KvTarget = KV

    def carry_out(
        self,
        planner: Planner,
        *,
        asks: Callable[[Plan], str] | None = None,
        closing: str = "",
        doubled: str | None = None,
    ) -> int:
        """Show a plan, or carry it out. What cannot be undone `asks` first; `closing` is said once
        all is done, and a table that is `doubled` has all its partitions.
        """

        async def work(meta: MetaClient, _: Environment) -> int:
            if self.dry_run or asks is not None:
                plan = planner(await meta.topology())
                check_epoch(plan, self.epoch)
                if self.dry_run:
                    show_plan(plan, self.target.output)
                    return 0
                if asks is not None and plan.changes and not _is_wanted(asks(plan)):
                    return 1
            return await _Carrying(self, meta, planner, doubled).out(closing)

        return self.target.run(work)


ORDER: Final = Order()


def _is_wanted(question: str) -> bool:
    write_line(question)
    if is_confirmed():
        return True
    write_line("nothing was changed")
    return False


def _check_goes_on(progress: Progress) -> None:
    """Whether others' moves end at all: nobody waits for a node that may never come back."""
    down = sorted({each.target for each in progress.moving if not each.is_target_up})
    if down and all(not each.is_target_up for each in progress.moving):
        raise Conflict(
            f"what moves goes to {', '.join(down)}, which is down: start it, or end that by "
            "`raftwood kv cluster cancel --all`"
        )


class _Carrying:
    def __init__(
        self, order: Order, meta: MetaClient, planner: Planner, doubled: str | None
    ) -> None:
        self._order = order
        self._meta = meta
        self._manager = ClusterManager(meta)
        self._planner = planner
        self._doubled = doubled
        self._plans: list[Plan] = []
        self._numbers: list[int] = []
        self._cancelled = 0

    async def out(self, closing: str) -> int:
        order = self._order
        try:
            while True:
                if order.wait and order.epoch is None:
                    await self._wait_for_others()
                plan, number = await self._manager.order(self._planner, epoch=order.epoch)
                self._plans.append(plan)
                if not plan.changes:
                    break
                self._numbers.append(number)
                if not order.wait:
                    break
                await self._wait_for(plan, number)
                if not plan.changes_later:
                    break
            if order.wait and self._doubled is not None:
                with Bar("splitting") as bar:
                    await self._manager.wait_doubled(
                        self._doubled,
                        told=lambda has, of: bar.show(has, of, f"{has} of {of} partitions", 0),
                    )
        except asyncio.CancelledError:
            if self._numbers:
                sys.stderr.write("it goes on: see `raftwood kv cluster status`\n")
            raise
        self._tell(closing)
        return 1 if self._cancelled else 0

    async def _wait_for_others(self) -> None:
        """An order that was interrupted here, or given elsewhere, goes on; planned is after it."""
        if is_under_way(await self._meta.topology()):
            sys.stderr.write("something moves already: waiting for that first\n")
            with MoveBar() as bar:

                def told(progress: Progress) -> None:
                    bar.show(progress)
                    _check_goes_on(progress)

                await self._manager.wait(told=told)

    async def _wait_for(self, plan: Plan, number: int) -> None:
        with MoveBar() as bar:
            await self._manager.wait(number, plan=plan, told=bar.show)
        self._cancelled += len(unmoved(plan, await self._meta.topology()))

    def _tell(self, closing: str) -> None:
        moves = sum(len(each.moves) for each in self._plans)
        masters = sum(len(each.masters) for each in self._plans)
        changes = sum(len(each.changes) for each in self._plans)
        last = self._plans[-1]
        is_done = self._order.wait
        if self._order.target.output == "json":
            told: dict[str, Any] = {
                "orders": self._numbers,
                "is_done": is_done,
                "cancelled": self._cancelled,
                "plans": [plan_data(each) for each in self._plans if each.changes],
            }
            write_json(told)
            return
        if not changes:
            write_line("nothing is to be done")
        elif is_done and (moves or masters):
            write_line(f"moved {moves - self._cancelled} replicas, changed {masters} masters")
        elif not is_done:
            write_line(
                f"ordered {moves} moves and {masters} changes of masters at epoch "
                f"{self._numbers[-1]}: see `raftwood kv cluster status`"
            )
        if self._cancelled:
            write_line(f"{self._cancelled} moves were cancelled meanwhile")
        if last.changes_later and not is_done:
            write_line(f"{last.changes_later} changes are left: run it again once these are done")
        for text in last.uneven:
            write_line(f"uneven: {text}")
        if closing and (is_done or not changes):
            write_line(closing)
