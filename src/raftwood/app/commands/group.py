"""`raftwood group`: consumer groups, who share a logstore's shards and note how far they read."""

from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from raftwood.app.commands.hub_target import HUB, HubTarget, Stream, stream_of
from raftwood.app.output import time_text, write_rows
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.controls import Checkpoint
from raftwood.loghub.cursors import decode_cursor

app = App(name="group", help_format="plaintext")

_GROUPS = {"name": "group", "timeout_s": "timeout (s)", "is_ordered": "children after parents"}
_CHECKPOINTS = {
    "shard": "shard",
    "position": "reads next",
    "consumer": "consumer",
    "updated": "noted",
}


@app.command(name="list")
def list_groups(stream: Stream, *, hub: HubTarget = HUB) -> int:
    """List the consumer groups of a logstore."""
    project, logstore = stream_of(stream)

    async def work(client: AsyncLogHubClient) -> int:
        found = await client.groups(project, logstore)
        write_rows([msgspec.to_builtins(each) for each in found], _GROUPS, hub.output)
        return 0

    return hub.run(work)


@app.command
def create(
    stream: Stream,
    group: str,
    *,
    timeout_s: Annotated[
        int,
        Parameter(
            name="--timeout-seconds",
            help="A consumer that is silent for so long loses its shards to the others.",
        ),
    ] = 60,
    ordered: Annotated[
        bool,
        Parameter(
            help="A shard is read once all of its parents is, so that the order of a key is kept "
            "across splits."
        ),
    ] = True,
    hub: HubTarget = HUB,
) -> int:
    """Make a consumer group; from then on its checkpoints hold back retention by size."""
    project, logstore = stream_of(stream)

    async def work(client: AsyncLogHubClient) -> int:
        await client.create_group(project, logstore, group, timeout_s=timeout_s, is_ordered=ordered)
        row = {"name": group, "timeout_s": timeout_s, "is_ordered": ordered}
        write_rows([row], _GROUPS, hub.output)
        return 0

    return hub.run(work)


@app.command
def delete(stream: Stream, group: str, *, hub: HubTarget = HUB) -> int:
    """Remove a consumer group and its checkpoints."""
    project, logstore = stream_of(stream)

    async def work(client: AsyncLogHubClient) -> int:
        await client.delete_group(project, logstore, group)
        write_rows([{"name": group}], {"name": "deleted group"}, hub.output)
        return 0

    return hub.run(work)


@app.command
def checkpoints(stream: Stream, group: str, *, hub: HubTarget = HUB) -> int:
    """Show how far a group has read each shard, and who noted it."""
    project, logstore = stream_of(stream)

    async def work(client: AsyncLogHubClient) -> int:
        found = await client.checkpoints(project, logstore, group)
        write_rows([_row(each) for each in found], _CHECKPOINTS, hub.output)
        return 0

    return hub.run(work)


def _row(checkpoint: Checkpoint) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(checkpoint)
    cursor, updated_us = checkpoint.checkpoint, checkpoint.updated_us
    row["position"] = str(decode_cursor(cursor)) if cursor else None
    row["updated"] = time_text(updated_us / 1e6) if updated_us else None
    row["consumer"] = checkpoint.consumer or None
    return row
