"""`raftwood kv node`: the nodes that keep Zeppelin's partitions."""

from cyclopts import App

from raftwood.app.commands.kv_target import KV, KvTarget
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


for name, line in {
    "start": "Run one node until SIGTERM or SIGINT.",
    "show": "Show a node as it sees itself.",
}.items():
    # Loaded when they are called: they need the whole server.
    app.command(f"raftwood.app.commands.kv_node_{name}:app", name=name, help=line)


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
