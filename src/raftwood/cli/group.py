"""`raftwood group`: consumer groups, who share a logstore's shards and note how far they read.

There are two kinds. Gateways keep the groups of SLS's consumers and of readers: `list`, `create`,
`delete`, `checkpoints`. Workers of `raftwood consume` keep theirs as leases in a store of their
own: `show`, `reset`, `drain`.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from raftwood.base.environment import Environment
from raftwood.cli.lease_target import LEASES, LeaseTarget, lease_store
from raftwood.cli.loghub_target import HUB, HubTarget, Stream, stream_of
from raftwood.cli.output import time_text, write_rows
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.client.reader import start_at
from raftwood.loghub.consumer.group_admin import (
    drain_workers,
    leased_shards,
    reset_group,
    show_group,
)
from raftwood.loghub.consumer.leases import LeaseStore
from raftwood.loghub.consumer.loghub_source import LogHubSource
from raftwood.loghub.wire import GroupCheckpoint, decode_cursor

app = App(name="group", help_format="plaintext")

_LEASES = {
    "shard": "shard",
    "owner": "owner",
    "consumer": "consumer",
    "epoch": "epoch",
    "checkpoint": "reads next",
    "lag_s": "lag (s)",
    "bytes_per_s": "bytes/s",
}
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


@app.command
def show(stream: Stream, group: str, *, leases: LeaseTarget = LEASES, hub: HubTarget = HUB) -> int:
    """Show who leases each shard, how far it was read, and how far behind that is."""

    async def work(found: _Opened) -> int:
        rows = await show_group(found.store, found.source, found.environment)
        write_rows([msgspec.to_builtins(each) for each in rows], _LEASES, hub.output)
        return 0

    return _on_leases(stream, group, leases, hub, work)


@app.command
def reset(
    stream: Stream,
    group: str,
    *,
    to: Annotated[
        str,
        Parameter(
            help='The "begin", the "end", or what was received since a time: 2026-01-31T10:00:00Z, '
            'seconds since 1970, or so long ago, as "15min".'
        ),
    ],
    shard: Annotated[
        tuple[int, ...], Parameter(negative="", help="Of this shard alone; repeatable.")
    ] = (),
    leases: LeaseTarget = LEASES,
    hub: HubTarget = HUB,
) -> int:
    """Set what a group of `raftwood consume` reads next; its workers have to be stopped.

    Shards that were split or merged, and read to their ends, stay over.
    """
    project, logstore = stream_of(stream)
    at = start_at(to, now_s=time.time())

    async def work(found: _Opened) -> int:
        leased = await leased_shards(found.store, found.source)
        chosen = list(shard) or [int(each) for each in leased]
        positions = {
            str(each): str(await found.client.cursor(project, logstore, shard=each, at=at))
            for each in chosen
        }
        await reset_group(found.store, positions)
        rows = [{"shard": name, "checkpoint": position} for name, position in positions.items()]
        write_rows(rows, {"shard": "shard", "checkpoint": "reads next"}, hub.output)
        return 0

    return _on_leases(stream, group, leases, hub, work)


@app.command
def drain(
    stream: Stream,
    group: str,
    workers: Annotated[tuple[str, ...], Parameter(help="Their names; all without one.")] = (),
    *,
    wait_s: Annotated[
        float, Parameter(name="--wait-seconds", help="For the hand-over of what they have.")
    ] = 30.0,
    leases: LeaseTarget = LEASES,
    hub: HubTarget = HUB,
) -> int:
    """Send workers of `raftwood consume` away: they hand over what they have, and end."""

    async def work(found: _Opened) -> int:
        gone = await drain_workers(found.store, found.environment, workers, wait_s=wait_s)
        write_rows([{"name": name} for name in gone], {"name": "drained worker"}, hub.output)
        return 0

    return _on_leases(stream, group, leases, hub, work)


@dataclass(frozen=True)
class _Opened:
    """What a command on leases works with."""

    environment: Environment
    client: AsyncLogHubClient
    store: LeaseStore
    source: LogHubSource


def _on_leases(
    stream: str,
    group: str,
    leases: LeaseTarget,
    hub: HubTarget,
    work: Callable[[_Opened], Awaitable[int]],
) -> int:
    project, logstore = stream_of(stream)

    async def opened(environment: Environment, client: AsyncLogHubClient) -> int:
        source = LogHubSource(client, project=project, logstore=logstore)
        async with lease_store(
            environment, leases, hub.source, stream=stream, group=group
        ) as store:
            await store.open()
            try:
                return await work(_Opened(environment, client, store, source))
            finally:
                await store.close()

    return hub.run_in(opened)


def _row(checkpoint: GroupCheckpoint) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(checkpoint)
    cursor, updated_us = checkpoint.checkpoint, checkpoint.updated_us
    row["position"] = str(decode_cursor(cursor)) if cursor else None
    row["updated"] = time_text(updated_us / 1e6) if updated_us else None
    row["consumer"] = checkpoint.consumer or None
    return row
