"""`raftwood logstore`: the streams of a project."""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from raftwood.base.errors import InvalidInput
from raftwood.cli.loghub_target import HUB, HubTarget, Stream, size_of, stream_of
from raftwood.cli.output import size_text, time_text, write_json, write_rows
from raftwood.cli.project import PAGE
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.model import LogKind
from raftwood.loghub.wire import LogstoreOptions

app = App(name="logstore", help_format="plaintext")


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """What can be set; what is not given stays as it is, or at its default."""

    ttl_days: Annotated[
        int | None, Parameter(help="Free batches older than this; 0: never. 30 at first.")
    ] = None
    retained_bytes_max: Annotated[
        str | None,
        Parameter(
            help='Of each shard keep so much, as "10GiB", unless a consumer group needs more; '
            "0: keep all."
        ),
    ] = None
    ttl_spares_readers: Annotated[
        bool | None,
        Parameter(help="Keep batches that are too old while a consumer group needs them."),
    ] = None
    enable_tracking: Annotated[
        bool | None, Parameter(help="Kept for SLS clients; changes nothing.")
    ] = None
    append_meta: Annotated[
        bool | None, Parameter(help="Kept for SLS clients; changes nothing.")
    ] = None
    auto_split: Annotated[bool | None, Parameter(help="Split shards that take much.")] = None
    shards_split_max: Annotated[
        int | None, Parameter(help="With --auto-split, up to so many shards that can be written.")
    ] = None
    telemetry_type: Annotated[
        str | None, Parameter(help="Kept for SLS clients; changes nothing.")
    ] = None

    def given(self) -> LogstoreOptions:
        return LogstoreOptions(
            ttl_days=self.ttl_days,
            retained_bytes_max=size_of("--retained-bytes-max", self.retained_bytes_max),
            ttl_spares_readers=self.ttl_spares_readers,
            enable_tracking=self.enable_tracking,
            append_meta=self.append_meta,
            auto_split=self.auto_split,
            shards_split_max=self.shards_split_max,
            telemetry_type=self.telemetry_type,
        )


_NONE = Options()


@app.command
def create(
    stream: Stream,
    *,
    shards: Annotated[int, Parameter(help="How many it begins with.")] = 2,
    log: Annotated[
        LogKind, Parameter(help="What its shards are kept in; it cannot be changed later.")
    ] = LogKind.LOGSERVICE,
    options: Options = _NONE,
    hub: HubTarget = HUB,
) -> int:
    """Make a logstore, ready to be written."""
    project, logstore = stream_of(stream)
    given = options.given()

    async def work(client: AsyncLogHubClient) -> int:
        await client.create_logstore(project, logstore, shard_count=shards, log=log, options=given)
        return await _show(client, project, logstore, hub)

    return hub.run(work)


@app.command(name="list")
def list_logstores(
    project: str,
    *,
    contains: Annotated[str, Parameter(help="Only those with this in their names.")] = "",
    hub: HubTarget = HUB,
) -> int:
    """List the logstores of a project."""

    async def work(client: AsyncLogHubClient) -> int:
        names: list[str] = []
        while True:
            page = await client.logstores(project, offset=len(names), size=PAGE, contains=contains)
            names += page.logstores
            if not page.logstores or len(names) >= page.total:
                break
        rows = [{"project": project, "logstore": name} for name in names]
        write_rows(rows, {"project": "project", "logstore": "logstore"}, hub.output)
        return 0

    return hub.run(work)


@app.command
def show(stream: Stream, *, hub: HubTarget = HUB) -> int:
    """Show a logstore and what is set for it; its shards are shown by `raftwood shard list`."""
    project, logstore = stream_of(stream)

    async def work(client: AsyncLogHubClient) -> int:
        return await _show(client, project, logstore, hub)

    return hub.run(work)


@app.command
def update(stream: Stream, *, options: Options = _NONE, hub: HubTarget = HUB) -> int:
    """Change what is given."""
    project, logstore = stream_of(stream)
    given = options.given()
    if given == LogstoreOptions():
        raise InvalidInput("nothing is to be changed: see `raftwood logstore update --help`")

    async def work(client: AsyncLogHubClient) -> int:
        await client.update_logstore(project, logstore, given)
        return await _show(client, project, logstore, hub)

    return hub.run(work)


@app.command
def delete(stream: Stream, *, hub: HubTarget = HUB) -> int:
    """Remove a logstore with all that is in it, its consumer groups too."""
    project, logstore = stream_of(stream)

    async def work(client: AsyncLogHubClient) -> int:
        await client.delete_logstore(project, logstore)
        row = {"project": project, "logstore": logstore}
        write_rows([row], {"project": "of project", "logstore": "deleted logstore"}, hub.output)
        return 0

    return hub.run(work)


async def _show(client: AsyncLogHubClient, project: str, logstore: str, hub: HubTarget) -> int:
    found = await client.logstore(project, logstore)
    if hub.output == "json":
        write_json([msgspec.to_builtins(found)])
        return 0
    shown: dict[str, Any] = msgspec.to_builtins(found)
    for name in ("next_shard", "is_deleting"):
        del shown[name]
    shown["shards"] = len(found.visible())
    shown["retained_bytes_max"] = size_text(found.retained_bytes_max)
    for name in ("created_s", "modified_s"):
        shown[name.removesuffix("_s")] = time_text(shown.pop(name))
    rows = [{"name": name.replace("_", " "), "value": value} for name, value in shown.items()]
    write_rows(rows, {"name": "property", "value": "value"}, "text")
    return 0
