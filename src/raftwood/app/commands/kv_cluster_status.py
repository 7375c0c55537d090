"""`raftwood kv cluster status`: what moves and how far it is, and which nodes are being emptied."""

from typing import Annotated, Any, Final

import msgspec
from cyclopts import App, Parameter

from raftwood.app.commands.kv_target import KV, KvTarget
from raftwood.app.kv_overview import node_state
from raftwood.app.kv_plans import MoveBar, progress_text
from raftwood.app.output import Format, size_text, write_json, write_line, write_rows
from raftwood.base.environment import Environment
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.meta.manager import ClusterManager
from raftwood.zeppelin.meta.plans.progress import MovingReplica, Progress, progress_of
from raftwood.zeppelin.model import Topology

app = App(name="status", help_format="plaintext")

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


@app.default
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


def _show(topology: Topology, progress: Progress, output: Format) -> None:
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
