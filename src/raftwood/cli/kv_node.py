"""`raftwood kv node`: list and remove Zeppelin's nodes, and ask one how it is."""

from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from raftwood.base.environment import Environment
from raftwood.base.errors import NotFound
from raftwood.cli.cluster_target import KV, KvTarget
from raftwood.cli.kv_overview import Overview
from raftwood.cli.output import size_text, write_json, write_line, write_rows
from raftwood.server.cluster import operator_network
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.model import NodeId
from raftwood.zeppelin.node.admin import ask_status
from raftwood.zeppelin.node.admin_protocol import NodeStatus

show_app = App(name="show", help_format="plaintext")

_COPIES = {
    "table": "table",
    "partition": "partition",
    "role": "role",
    "is_writing": "serves",
    "epoch": "epoch",
    "last_sequence": "last record",
    "synced_sequence": "synced",
    "first_sequence": "first kept",
    "lag": "behind",
    "slaves_in_sync": "slaves in sync",
}


@show_app.default
def show(
    node: str,
    *,
    table: Annotated[
        tuple[str, ...], Parameter(negative="", help="Partitions of this one alone; repeatable.")
    ] = (),
    target: KvTarget = KV,
) -> int:
    """Show a node as it sees itself; the exit status is 1 where it is of little use."""
    network = operator_network(target.cluster.source.load().settings)

    async def work(meta: MetaClient, environment: Environment) -> int:
        known = (await meta.topology()).nodes.get(NodeId(node))
        if known is None:
            raise NotFound(f"there is no node {node!r}: see `raftwood kv node list`")
        status = await ask_status(environment, network, known, tables=table)
        if target.output == "json":
            write_json(msgspec.to_builtins(status))
        else:
            _tell(status)
        return 1 if status.problem else 0

    return target.run(work)


def _tell(status: NodeStatus) -> None:
    about = msgspec.structs.asdict(status)
    about |= {name: size_text(value) for name, value in about.items() if name.endswith("_bytes")}
    about |= {
        f"parked {name}": value for name, value in msgspec.structs.asdict(status.parked).items()
    }
    del about["copies"], about["parked"]
    if status.problem:
        write_line(f"problem: {status.problem}")
    del about["problem"]
    rows = [{"name": name.replace("_", " "), "value": value} for name, value in about.items()]
    write_rows(rows, {"name": "property", "value": "value"}, "text")
    if status.copies:
        write_line("")
        copies = [
            msgspec.structs.asdict(each) | {"lag": size_text(each.lag_bytes)}
            for each in sorted(status.copies, key=lambda each: (each.table, each.partition))
        ]
        write_rows(copies, _COPIES, "text")


app = App(name="node", help="Run, list and remove nodes.", help_format="plaintext")

_COLUMNS = {
    "node": "node",
    "state": "state",
    "data": "serves on",
    "replication": "replication",
    "admin": "admin",
    "failure_domain": "domain",
    "masters": "masters",
    "replicas": "replicas",
}


for name, (place, line) in {
    "start": ("kv_node_process:app", "Run one node until SIGTERM or SIGINT."),
    "show": ("kv_node:show_app", "Show a node as it sees itself."),
}.items():
    # Loaded when they are called: a node needs the whole server.
    app.command(f"raftwood.cli.{place}", name=name, help=line)


@app.command(name="list")
def list_nodes(*, target: KvTarget = KV) -> int:
    """List the nodes that have ever started and were not removed."""

    async def work(meta: MetaClient, _: Environment) -> int:
        found = Overview(await meta.topology(), await meta.reports())
        write_rows(found.nodes(), _COLUMNS, target.output)
        return 0

    return target.run(work)


@app.command
def remove(node: str, *, target: KvTarget = KV) -> int:
    """Forget a node that is stopped for good and has no partition."""

    async def work(meta: MetaClient, _: Environment) -> int:
        await meta.remove_node(NodeId(node))
        write_rows([{"node": node}], {"node": "removed node"}, target.output)
        return 0

    return target.run(work)
