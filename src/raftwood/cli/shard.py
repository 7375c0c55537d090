"""`raftwood shard`: the parts of a logstore, and how they are split and merged."""

from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from raftwood.base.position import parse_position
from raftwood.cli.loghub_target import HUB, HubTarget, Stream, stream_of
from raftwood.cli.output import size_text, time_text, write_rows
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.model import Shard
from raftwood.loghub.wire import ShardDetail

app = App(name="shard", help_format="plaintext")

_SHARDS = {
    "id": "shard",
    "status": "status",
    "range": "keys",
    "parents": "parents",
    "children": "children",
    "created": "made",
}
_DETAILS = _SHARDS | {
    "first": "first",
    "next": "next",
    "size": "took",
    "required": "required",
    "required_by": "by",
}
_DIGITS = 8


@app.command(name="list")
def list_shards(stream: Stream, *, hub: HubTarget = HUB) -> int:
    """List the shards: their ranges of keys, what they hold, and what readers still need of them.

    A shard holds positions from its first up to its next one; `took` counts what was freed as
    well. `required` is what the slowest consumer group, named under `by`, reads next.
    """
    project, logstore = stream_of(stream)

    async def work(client: AsyncLogHubClient) -> int:
        details = await client.describe(project, logstore)
        write_rows([_detail_row(each) for each in details], _DETAILS, hub.output)
        return 0

    return hub.run(work)


@app.command
def split(
    stream: Stream,
    shard: int,
    *,
    at: Annotated[
        str | None,
        Parameter(help="The key to cut at, 32 hexadecimal digits; else in the middle."),
    ] = None,
    hub: HubTarget = HUB,
) -> int:
    """Cut a shard in two; it can be read from then on, and the two take over its keys."""
    project, logstore = stream_of(stream)

    async def work(client: AsyncLogHubClient) -> int:
        changed = await client.split_shard(project, logstore, shard=shard, key=at)
        write_rows([_row(each) for each in changed], _SHARDS, hub.output)
        return 0

    return hub.run(work)


@app.command
def merge(stream: Stream, shard: int, *, hub: HubTarget = HUB) -> int:
    """Join a shard with the one whose keys follow; a new one takes over both."""
    project, logstore = stream_of(stream)

    async def work(client: AsyncLogHubClient) -> int:
        changed = await client.merge_shard(project, logstore, shard=shard)
        write_rows([_row(each) for each in changed], _SHARDS, hub.output)
        return 0

    return hub.run(work)


@app.command
def delete(stream: Stream, shard: int, *, hub: HubTarget = HUB) -> int:
    """Remove a shard that was split or merged, and what is in it."""
    project, logstore = stream_of(stream)

    async def work(client: AsyncLogHubClient) -> int:
        await client.delete_shard(project, logstore, shard=shard)
        write_rows([{"id": shard}], {"id": "deleted shard"}, hub.output)
        return 0

    return hub.run(work)


@app.command
def truncate(
    stream: Stream,
    shard: int,
    before: Annotated[str, Parameter(help="A position, as `raftwood shard list` shows them.")],
    *,
    hub: HubTarget = HUB,
) -> int:
    """Let go of all before a position, but for what a registered reader still needs."""
    project, logstore = stream_of(stream)
    position = parse_position(before)

    async def work(client: AsyncLogHubClient) -> int:
        first = await client.truncate_shard(project, logstore, shard=shard, before=position)
        row = {"id": shard, "first": str(first)}
        write_rows([row], {"id": "shard", "first": "first position left"}, hub.output)
        return 0

    return hub.run(work)


def _row(shard: Shard) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(shard)
    row["range"] = f"{short_key(shard.begin)} to {short_key(shard.end)}"
    row["created"] = time_text(shard.created_s)
    row["parents"] = list(shard.parents)
    row["children"] = list(shard.children)
    return row


def _detail_row(detail: ShardDetail) -> dict[str, Any]:
    return _row(detail.shard) | {
        "first": detail.first,
        "next": detail.next,
        "appended_bytes": detail.appended_bytes,
        "size": size_text(detail.appended_bytes),
        "required": detail.required,
        "required_by": detail.required_by or None,
    }


def short_key(key: str) -> str:
    """A key without the digits at its end that say nothing."""
    return f"{key[:_DIGITS]}…" if key[_DIGITS:].strip(key[-1]) == "" else key
