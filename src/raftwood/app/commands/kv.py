"""`raftwood kv`: Zeppelin's tables of keys and values, who may use them, and how they are."""

import asyncio
from typing import Annotated

from cyclopts import App, Parameter

from raftwood.app.commands.kv_target import KV, KvTarget
from raftwood.app.kv_overview import Overview
from raftwood.app.kv_plans import progress_text
from raftwood.app.output import Format, size_text, write_json, write_line, write_rows
from raftwood.base.environment import Environment
from raftwood.zeppelin.meta.client import MetaClient

app = App(name="kv", help_format="plaintext")
for name, (place, line) in {
    "table": ("kv_table:app", "Make, look at and drop tables."),
    "user": ("kv_user:app", "Say who may use a table."),
    "node": ("kv_node:app", "Run, list and remove nodes."),
    "cluster": ("kv_cluster:app", "Grow, shrink and balance: who has which partitions."),
    "get": ("kv_data:get", "Show keys' values, and when they end."),
    "set": ("kv_data:set_", "Give a key a value."),
    "del": ("kv_data:delete", "Delete keys."),
    "backup": ("kv_backup:app", "Write a table into a folder or an object store."),
    "restore": ("kv_backup:restore_", "Write a backup into a table."),
    "capture": ("kv_capture:capture", "Put a table's changes into a stream."),
    "replay": ("kv_replay:replay", "Apply a stream of changes to a table."),
    "scan": ("kv_data:scan", "Show the keys of a table."),
}.items():
    # Loaded when they are called.
    app.command(f"raftwood.app.commands.{place}", name=name, help=line)

_POLL_S = 0.2
_TABLES = {
    "table": "table",
    "partitions": "partitions",
    "masters": "with master",
    "slaves": "slaves up",
    "lag": "worst lag",
    "ack": "ack",
    "min_replicas": "min replicas",
}
_NODES = {
    "node": "node",
    "state": "state",
    "data": "serves on",
    "masters": "masters",
    "replicas": "replicas",
    "heard_ms": "heard (ms ago)",
}


@app.command
def status(
    *,
    wait_seconds: Annotated[
        float, Parameter(help="How long to wait until nothing is wrong any more.")
    ] = 0.0,
    target: KvTarget = KV,
) -> int:
    """Show what is wrong, the tables and the nodes; the exit status is 1 while something is."""

    async def work(meta: MetaClient, _: Environment) -> int:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        found = await overview_of(meta)
        while found.problems() and loop.time() < deadline:
            await asyncio.sleep(_POLL_S)
            found = await overview_of(meta)
        _show(found, target.output)
        return 1 if found.problems() else 0

    return target.run(work)


def _show(found: Overview, output: Format) -> None:
    problems, tables, nodes = found.problems(), found.tables(), found.nodes()
    moves = found.moves()
    if output == "json":
        partitions = {
            table.name: found.partitions(table) for table in found.topology.tables.values()
        }
        whole = [row | {"partition_list": partitions[row["table"]]} for row in tables]
        head = {"epoch": found.topology.epoch, "problems": problems}
        write_json(head | {"tables": whole, "nodes": nodes, "moving": moves.moving})
        return
    for problem in problems:
        write_line(f"problem: {problem}")
    if not problems:
        write_line("nothing is wrong")
    if moves.moving:
        write_line(f"{progress_text(moves)}: see `raftwood kv cluster status`")
    shown = [
        row
        | {
            "slaves": f"{row['slaves_up']} of {row['slaves']}",
            "lag": None if row["lag_bytes"] is None else size_text(row["lag_bytes"]),
        }
        for row in tables
    ]
    for rows, columns in ((shown, _TABLES), (nodes, _NODES)):
        if rows:
            write_line("")
            write_rows(rows, columns, "text")


async def overview_of(meta: MetaClient) -> Overview:
    return Overview(await meta.topology(), await meta.reports())
