"""`raftwood kv cluster`: what is done to one partition, and what ends moves."""

from typing import Annotated

from cyclopts import Parameter

from raftwood.app.commands.kv_cluster import Yes
from raftwood.app.commands.kv_order import ORDER, Order
from raftwood.app.commands.kv_target import KV, KvTarget
from raftwood.app.kv_names import node_named
from raftwood.app.output import write_json, write_line
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.meta.manager import ClusterManager
from raftwood.zeppelin.meta.plans import single
from raftwood.zeppelin.meta.plans.plan import Plan


def add_slave(table: str, partition: int, node: str, *, order: Order = ORDER) -> int:
    """Give a partition one replica more."""
    return order.carry_out(
        lambda topology: single.add_slave(
            topology, table=table, partition=partition, node=node_named(topology, node)
        ),
        closing=f"{node} is a slave of partition {partition} of table {table} now",
    )


def remove_slave(
    table: str, partition: int, node: str, *, yes: Yes = False, order: Order = ORDER
) -> int:
    """Give a partition one replica less."""

    def asks(_: Plan) -> str:
        return f"{node} will not have partition {partition} of table {table} any more."

    return order.carry_out(
        lambda topology: single.remove_slave(
            topology, table=table, partition=partition, node=node_named(topology, node)
        ),
        asks=None if yes else asks,
        closing=f"{node} has no partition {partition} of table {table} any more",
    )


def set_master(table: str, partition: int, node: str, *, order: Order = ORDER) -> int:
    """Let another replica be the master; it is handed over once that one is close."""
    return order.carry_out(
        lambda topology: single.set_master(
            topology, table=table, partition=partition, node=node_named(topology, node)
        )
    )


def migrate(
    table: str,
    partition: int,
    *,
    source: Annotated[str, Parameter(name="--from", help="The node that has it.")],
    to: Annotated[str, Parameter(help="The node that is to have it.")],
    order: Order = ORDER,
) -> int:
    """Move one replica to another node."""
    return order.carry_out(
        lambda topology: single.migrate(
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
