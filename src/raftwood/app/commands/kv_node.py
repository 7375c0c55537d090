"""`raftwood kv node`: the nodes that keep Zeppelin's partitions."""

from typing import Annotated

from cyclopts import App, Parameter

from raftwood.app.commands.kv_target import KV, KvTarget
from raftwood.app.commands.source import DEFAULTS, Source
from raftwood.app.kv_node_running import run_kv_node
from raftwood.app.kv_overview import Overview
from raftwood.app.output import write_rows
from raftwood.base.environment import Environment
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.model import NodeId

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


@app.command
def start(
    *,
    connect: Annotated[
        str | None,
        Parameter(help="Stores of the log service, HOST:PORT[,…]; else cluster.members."),
    ] = None,
    ready_file: Annotated[
        str | None,
        Parameter(
            help="Written once it serves: its addresses (data, replication, admin), its id, and "
            "its process number."
        ),
    ] = None,
    source: Source = DEFAULTS,
) -> None:
    """Run one node until SIGTERM or SIGINT.

    It keeps partitions in zeppelin_node.data_folder, by which it is known for ever, and registers
    with the cluster's meta server. A second signal ends it at once. SIGHUP makes it read its TLS
    files again.
    """
    run_kv_node(source, connect, ready_file=ready_file)


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
