"""`raftwood kv node show`: what a node tells of itself, on its listener for operators."""

from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from raftwood.app.cluster_network import operator_network
from raftwood.app.commands.kv_target import KV, KvTarget
from raftwood.app.output import size_text, write_json, write_line, write_rows
from raftwood.base.environment import Environment
from raftwood.base.errors import NotFound
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.model import NodeId
from raftwood.zeppelin.node.admin import ask_status
from raftwood.zeppelin.node.admin_wire import NodeStatus

app = App(name="show", help_format="plaintext")

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


@app.default
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
    write_rows(rows, {"name": "of the node", "value": "value"}, "text")
    if status.copies:
        write_line("")
        copies = [
            msgspec.structs.asdict(each) | {"lag": size_text(each.lag_bytes)}
            for each in sorted(status.copies, key=lambda each: (each.table, each.partition))
        ]
        write_rows(copies, _COPIES, "text")
