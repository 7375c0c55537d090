"""`raftwood kv cluster`: who has which partitions, and what moves.

Grow, shrink, balance and double a cluster; change the replicas of one partition.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from cyclopts import App, Parameter

from raftwood.base.environment import Environment
from raftwood.base.errors import Conflict, InvalidInput, NotFound
from raftwood.cli.cluster_target import KV, KvTarget
from raftwood.cli.kv_overview import MoveBar, node_state, plan_data, progress_text, show_plan
from raftwood.cli.options import is_confirmed
from raftwood.cli.output import Format, ProgressBar, size_text, write_json, write_line, write_rows
from raftwood.zeppelin.meta import plans
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.meta.manager import ClusterManager, Planner, check_epoch
from raftwood.zeppelin.meta.plans import ClusterPlan
from raftwood.zeppelin.meta.progress import (
    MigrationProgress,
    MovingReplica,
    is_under_way,
    progress_of,
    unmoved,
)
from raftwood.zeppelin.model import NodeId, Topology


def node_named(topology: Topology, text: str) -> NodeId:
    """The one node that is meant; else an error that says which could be."""
    if text in topology.nodes:
        return NodeId(text)
    serving = [node for node, each in topology.nodes.items() if each.addresses.data == text]
    found = serving or [node for node in topology.nodes if text and node.startswith(text)]
    if not found:
        raise NotFound(f"there is no node {text!r}: see `raftwood kv node list`")
    if len(found) > 1:
        shown = ", ".join(sorted(found)[:10])
        raise InvalidInput(
            f"{text!r} could be any of {len(found)} nodes ({shown}): give more of it"
        )
    return found[0]


def nodes_named(topology: Topology, texts: Iterable[str]) -> list[NodeId]:
    return list(dict.fromkeys(node_named(topology, text) for text in texts))


@Parameter(name="*")
@dataclass(frozen=True)
class OrderOptions:
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
        asks: Callable[[ClusterPlan], str] | None = None,
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


ORDER: Final = OrderOptions()


def _is_wanted(question: str) -> bool:
    write_line(question)
    if is_confirmed():
        return True
    write_line("nothing was changed")
    return False


def _check_goes_on(progress: MigrationProgress) -> None:
    """Whether others' moves end at all: nobody waits for a node that may never come back."""
    down = sorted({each.target for each in progress.moving if not each.is_target_up})
    if down and all(not each.is_target_up for each in progress.moving):
        raise Conflict(
            f"what moves goes to {', '.join(down)}, which is down: start it, or end that by "
            "`raftwood kv cluster cancel --all`"
        )


class _Carrying:
    def __init__(
        self, order: OrderOptions, meta: MetaClient, planner: Planner, doubled: str | None
    ) -> None:
        self._order = order
        self._meta = meta
        self._manager = ClusterManager(meta)
        self._planner = planner
        self._doubled = doubled
        self._plans: list[ClusterPlan] = []
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
                with ProgressBar("splitting") as bar:
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

                def told(progress: MigrationProgress) -> None:
                    bar.show(progress)
                    _check_goes_on(progress)

                await self._manager.wait(told=told)

    async def _wait_for(self, plan: ClusterPlan, number: int) -> None:
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


app = App(
    name="cluster",
    help="Grow, shrink and balance: who has which partitions.",
    help_format="plaintext",
)
for name, (place, line) in {
    "status": ("kv_cluster:status_app", "Show what moves, and which nodes are being emptied."),
    "add-slave": ("kv_cluster:add_slave", "Give a partition one replica more."),
    "remove-slave": ("kv_cluster:remove_slave", "Give a partition one replica less."),
    "set-master": ("kv_cluster:set_master", "Let another replica be the master."),
    "migrate": ("kv_cluster:migrate", "Move one replica to another node."),
    "cancel": ("kv_cluster:cancel", "Let what moves stay where it was."),
    "double": ("kv_cluster:double_app", "Give a table twice as many partitions."),
}.items():
    # Loaded when they are called.
    app.command(f"raftwood.cli.{place}", name=name, help=line)

Yes = Annotated[bool, Parameter(help="Do it without asking.", negative=())]
FewerDomains = Annotated[
    bool,
    Parameter(
        help="Let replicas of a partition share failure domains where there are too few.",
        negative=(),
    ),
]


@app.command
def balance(
    *,
    table: Annotated[str | None, Parameter(help="This one alone; else all.")] = None,
    order: OrderOptions = ORDER,
) -> int:
    """Spread replicas and masters evenly over nodes and failure domains, by the fewest moves."""
    return order.carry_out(lambda topology: plans.balance(topology, table=table))


@app.command
def expand(*nodes: str, order: OrderOptions = ORDER) -> int:
    """Give new nodes their share: those that are named, else all that have less than half of it."""
    return order.carry_out(lambda topology: plans.expand(topology, nodes_named(topology, nodes)))


@app.command
def drain(
    *nodes: str,
    undo: Annotated[
        bool, Parameter(help="Let them have something again instead.", negative=())
    ] = False,
    fewer_domains: FewerDomains = False,
    order: OrderOptions = ORDER,
) -> int:
    """Empty nodes, and give them nothing new."""

    def planner(topology: Topology) -> ClusterPlan:
        named = nodes_named(topology, nodes)
        if undo:
            return plans.undo_drain(topology, named)
        return plans.drain(topology, named, fewer_domains=fewer_domains)

    return order.carry_out(planner)


@app.command
def shrink(
    *nodes: str,
    yes: Yes = False,
    fewer_domains: FewerDomains = False,
    order: OrderOptions = ORDER,
) -> int:
    """Empty nodes that are to go, and say when they may be stopped."""

    def asks(plan: ClusterPlan) -> str:
        return f"{', '.join(nodes)} will be empty, and {len(plan.moves)} replicas move to others."

    return order.carry_out(
        lambda topology: plans.drain(
            topology, nodes_named(topology, nodes), fewer_domains=fewer_domains
        ),
        asks=None if yes else asks,
        closing=(
            f"{', '.join(nodes)} may be stopped now; then forget them by `raftwood kv cluster "
            f"remove-nodes {' '.join(nodes)}`"
        ),
    )


@app.command(name="replace-node")
def replace_node(
    old: str, new: str, *, fewer_domains: FewerDomains = False, order: OrderOptions = ORDER
) -> int:
    """Move all that one node has to another one; the old one may be dead."""
    return order.carry_out(
        lambda topology: plans.replace_node(
            topology,
            old=node_named(topology, old),
            new=node_named(topology, new),
            fewer_domains=fewer_domains,
        ),
        closing=f"{old} may be stopped now, if it is not",
    )


@app.command(name="remove-nodes")
def remove_nodes(*nodes: str, yes: Yes = False, order: OrderOptions = ORDER) -> int:
    """Forget nodes that are stopped and have nothing."""

    def asks(_: ClusterPlan) -> str:
        return f"{', '.join(nodes)} will be forgotten."

    return order.carry_out(
        lambda topology: plans.remove_nodes(topology, nodes_named(topology, nodes)),
        asks=None if yes else asks,
        closing=f"forgot {', '.join(nodes)}",
    )


double_app = App(name="double", help_format="plaintext")


@double_app.default
def double(table: str, *, yes: Yes = False, order: OrderOptions = ORDER) -> int:
    """Give a table twice as many partitions; each is split where it is.

    A table cannot have fewer again. Where it doubles already, this waits for it.
    """

    def planner(topology: Topology) -> ClusterPlan:
        found = topology.tables.get(table)
        if found is not None and found.is_doubling:
            return ClusterPlan(epoch=topology.epoch, changes=())
        return plans.double(topology, table)

    def asks(_: ClusterPlan) -> str:
        return f"table {table} will have twice as many partitions, and never fewer again."

    return order.carry_out(
        planner,
        asks=None if yes else asks,
        doubled=table,
        closing=f"table {table} has all its partitions; `raftwood kv cluster balance` spreads them",
    )


def add_slave(table: str, partition: int, node: str, *, order: OrderOptions = ORDER) -> int:
    """Give a partition one replica more."""
    return order.carry_out(
        lambda topology: plans.add_slave(
            topology, table=table, partition=partition, node=node_named(topology, node)
        ),
        closing=f"{node} is a slave of partition {partition} of table {table} now",
    )


def remove_slave(
    table: str, partition: int, node: str, *, yes: Yes = False, order: OrderOptions = ORDER
) -> int:
    """Give a partition one replica less."""

    def asks(_: ClusterPlan) -> str:
        return f"{node} will not have partition {partition} of table {table} any more."

    return order.carry_out(
        lambda topology: plans.remove_slave(
            topology, table=table, partition=partition, node=node_named(topology, node)
        ),
        asks=None if yes else asks,
        closing=f"{node} has no partition {partition} of table {table} any more",
    )


def set_master(table: str, partition: int, node: str, *, order: OrderOptions = ORDER) -> int:
    """Let another replica be the master; it is handed over once that one is close."""
    return order.carry_out(
        lambda topology: plans.set_master(
            topology, table=table, partition=partition, node=node_named(topology, node)
        )
    )


def migrate(
    table: str,
    partition: int,
    *,
    source: Annotated[str, Parameter(name="--from", help="The node that has it.")],
    to: Annotated[str, Parameter(help="The node that is to have it.")],
    order: OrderOptions = ORDER,
) -> int:
    """Move one replica to another node."""
    return order.carry_out(
        lambda topology: plans.migrate(
            topology,
            table=table,
            partition=partition,
            source=node_named(topology, source),
            target=node_named(topology, to),
        )
    )


def cancel(
    table: str | None = None,
    partition: int | None = None,
    *,
    plan: Annotated[
        int | None, Parameter(help="All that was ordered together; the status shows its number.")
    ] = None,
    all_: Annotated[bool, Parameter(name="--all", help="All that moves.", negative=())] = False,
    target: KvTarget = KV,
) -> int:
    """Let what moves stay where it was: one partition, a table, a whole plan, or all."""
    if not all_ and plan is None and table is None:
        raise InvalidInput("say what is to be cancelled: a table, --plan or --all")

    async def work(meta: MetaClient, _: Environment) -> int:
        done = await ClusterManager(meta).cancel(table=table, partition=partition, order=plan)
        if target.output == "json":
            write_json(done)
        else:
            write_line(f"cancelled what moved of {done.count} partitions")
            for text in done.too_late:
                write_line(f"goes on: {text}")
        return 1 if done.too_late else 0

    return target.run(work)


status_app = App(name="status", help_format="plaintext")

_MOVING: Final = {
    "order": "plan",
    "table": "table",
    "partition": "partition",
    "source": "from",
    "target": "to",
    "step": "step",
    "copied": "copied",
    "lag": "behind",
}
_NODES: Final = {
    "node": "node",
    "state": "state",
    "failure_domain": "domain",
    "replicas": "replicas",
    "masters": "masters",
    "comes": "to come",
    "goes": "to go",
}
_SHOWN_MAX: Final = 50


@status_app.default
def status(
    *,
    wait: Annotated[bool, Parameter(help="Wait until nothing moves any more.")] = False,
    target: KvTarget = KV,
) -> int:
    """Show what moves and how far it is, and which nodes are being emptied."""

    async def work(meta: MetaClient, _: Environment) -> int:
        if wait:
            with MoveBar() as bar:
                await ClusterManager(meta).wait(told=bar.show)
        topology = await meta.topology()
        _show(topology, progress_of(topology, await meta.reports()), target.output)
        return 0

    return target.run(work)


def _show(topology: Topology, progress: MigrationProgress, output: Format) -> None:
    nodes = node_rows(topology)
    doubling = [
        {"table": name, "has": len(table.partitions), "of": table.config.partitions}
        for name, table in sorted(topology.tables.items())
        if table.is_doubling
    ]
    if output == "json":
        counts = {"total": progress.total, "done": progress.done, "handovers": progress.handovers}
        write_json(
            {"epoch": topology.epoch, "counts": counts | {"steps": progress.steps}}
            | {"moving": progress.moving, "nodes": nodes, "doubling": doubling}
        )
        return
    write_line(progress_text(progress) if progress.moving else "nothing moves")
    for row in doubling:
        write_line(f"table {row['table']} doubles: {row['has']} of {row['of']} partitions")
    if progress.moving:
        # Those that wait are many and have little to tell.
        order = sorted(progress.moving, key=lambda each: each.step == "waiting")
        write_line("")
        write_rows([_moving(each) for each in order[:_SHOWN_MAX]], _MOVING, "text")
        if len(order) > _SHOWN_MAX:
            write_line(f"and {len(order) - _SHOWN_MAX} more")
    if nodes:
        write_line("")
        write_rows(nodes, _NODES, "text")


def _moving(each: MovingReplica) -> dict[str, Any]:
    copied = f"{size_text(each.copied_bytes)} of {size_text(each.copy_bytes)}"
    return msgspec.structs.asdict(each) | {
        "step": each.step if each.is_target_up else f"{each.step} (the target is down)",
        "copied": copied if each.copy_bytes else None,
        "lag": None if each.lag_bytes is None else size_text(each.lag_bytes),
    }


def node_rows(topology: Topology) -> list[dict[str, Any]]:
    """What each has, and what it is still to get and to give."""
    rows: dict[str, dict[str, Any]] = {
        node: {
            "node": node,
            "state": node_state(each),
            "failure_domain": each.failure_domain,
            "replicas": 0,
            "masters": 0,
            "comes": 0,
            "goes": 0,
        }
        for node, each in sorted(topology.nodes.items())
    }
    for table in topology.tables.values():
        for partition in table.partitions:
            for node in partition.replicas:
                rows[node]["replicas"] += 1
            if partition.master is not None:
                rows[partition.master]["masters"] += 1
            for migration in partition.migrations:
                rows[migration.source]["goes"] += 1
                rows[migration.target]["comes"] += migration.target not in partition.replicas
    return list(rows.values())
