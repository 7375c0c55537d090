"""`raftwood kv`: Zeppelin's tables of keys and values: use one, and see how all of them are."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import App, Parameter

from raftwood.base.environment import Environment
from raftwood.base.errors import Conflict, InvalidConfiguration, InvalidInput, NotFound
from raftwood.base.text import MILLISECONDS
from raftwood.cli.cluster_target import KV, KvTarget
from raftwood.cli.kv_overview import Overview, progress_text
from raftwood.cli.options import DEFAULTS, Source, quantity_of
from raftwood.cli.output import Format, size_text, write_json, write_line, write_records, write_rows
from raftwood.disk.real_environment import real_environment
from raftwood.net import ClientTls, TlsFiles
from raftwood.server.cluster import client_tls
from raftwood.server.event_loop import run
from raftwood.server.settings import Settings
from raftwood.zeppelin.client import AsyncKv
from raftwood.zeppelin.meta.client import MetaClient

_COLUMNS = {"key": "key", "value": "value", "ttl_ms": "ends in (ms)"}
_SHOWN_AT_ONCE = 500


@Parameter(name="*")
@dataclass(frozen=True)
class KvUser:
    """Which nodes, as whom, and how to print what came of it."""

    addresses: Annotated[
        str | None,
        Parameter(help="Some nodes, HOST:PORT[,HOST:PORT]; else zeppelin_client.addresses."),
    ] = None
    user: Annotated[
        str | None,
        Parameter(
            help="The user of a table; else zeppelin_client.user. The password is "
            "zeppelin_client.password, in the file or as RAFTWOOD_ZEPPELIN_CLIENT__PASSWORD."
        ),
    ] = None
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text"
    source: Source = DEFAULTS

    def run(self, work: Callable[[AsyncKv], Coroutine[Any, Any, int]]) -> int:
        """Do something as a user of a table; answers the exit status."""

        async def main() -> int:
            async with await self.connect(environment) as kv:
                return await work(kv)

        with real_environment() as environment:
            return run(main())

    async def connect(self, environment: Environment) -> AsyncKv:
        """A client; its caller closes it."""
        settings = self.source.load().settings
        client = settings.zeppelin_client
        if not client.password:
            raise InvalidConfiguration(
                "zeppelin_client.password is not set: `raftwood kv table create` and `raftwood kv "
                "user add` make one, and print with --format toml what to add to the file; or use "
                "a context that has one, see `raftwood context list`"
            )

        return await AsyncKv.connect(
            self.addresses or client.addresses,
            user=self.user or client.user,
            password=client.password.reveal(),
            tls=_tls(settings),
            timeout_ms=client.timeout_ms,
            environment=environment,
        )


USER = KvUser()


def _tls(settings: Settings) -> ClientTls | None:
    authorities = settings.zeppelin_client.authorities
    if authorities:
        return ClientTls(TlsFiles(authorities=authorities))
    return client_tls(settings)


def get(*keys: str, user: KvUser = USER) -> int:
    """Show keys' values, and when they end; the exit status is 1 if one has none."""
    if not keys:
        raise InvalidInput("name a key at least")

    async def work(kv: AsyncKv) -> int:
        pairs = [*zip(keys, await kv.get_many(map(_data, keys)), strict=True)]
        rows = [
            {"key": key, "value": _text(value), "ttl_ms": await _ttl_ms(kv, key)}
            for key, value in pairs
            if value is not None
        ]
        missing = [key for key, value in pairs if value is None]
        if rows:
            write_rows(rows, _COLUMNS, user.output)
        if missing:
            raise NotFound(f"there is no key {', '.join(map(repr, missing[:10]))}")
        return 0

    return user.run(work)


async def _ttl_ms(kv: AsyncKv, key: str) -> int | None:
    left_ms = await kv.ttl_ms(_data(key))
    return left_ms if left_ms is not None and left_ms >= 0 else None


def set_(
    key: str,
    value: Annotated[str, Parameter(allow_leading_hyphen=True)],
    *,
    ttl: Annotated[str | None, Parameter(help='It is kept for so long, as "90s" or "1h".')] = None,
    if_absent: Annotated[bool, Parameter(negative="", help="Only if it has no value.")] = False,
    if_present: Annotated[bool, Parameter(negative="", help="Only if it has a value.")] = False,
    user: KvUser = USER,
) -> int:
    """Give a key a value."""
    if if_absent and if_present:
        raise InvalidInput("give --if-absent or --if-present, not both")
    ttl_ms = None if ttl is None else quantity_of("--ttl", ttl, MILLISECONDS)

    async def work(kv: AsyncKv) -> int:
        data = _data(value)
        if not await kv.set(_data(key), data, px=ttl_ms, nx=if_absent, xx=if_present):
            raise Conflict(f"key {key!r} has {'a value' if if_absent else 'no value'}: not set")
        write_rows([{"key": key, "value": _text(data), "ttl_ms": ttl_ms}], _COLUMNS, user.output)
        return 0

    return user.run(work)


def delete(*keys: str, user: KvUser = USER) -> int:
    """Delete keys, and tell how many there were."""
    if not keys:
        raise InvalidInput("name a key at least")

    async def work(kv: AsyncKv) -> int:
        row = {"deleted": await kv.delete_many(map(_data, keys))}
        write_rows([row], {"deleted": "deleted keys"}, user.output)
        return 0

    return user.run(work)


def scan(
    *,
    match: Annotated[
        str | None, Parameter(help='Only keys like this, as "{anna}*"; as in Redis.')
    ] = None,
    count: Annotated[int | None, Parameter(help="End after so many keys.")] = None,
    values: Annotated[bool, Parameter(negative="", help="Show their values, too.")] = False,
    user: KvUser = USER,
) -> int:
    """Show the keys of the table, a line each, in no order; with JSON, one object per line."""
    if count is not None and count < 1:
        raise InvalidInput(f"--count {count} shows nothing: give 1 or more")

    async def work(kv: AsyncKv) -> int:
        shown = 0
        page: list[bytes] = []
        async for key in kv.scan(None if match is None else _data(match)):
            page.append(key)
            if len(page) == _SHOWN_AT_ONCE or shown + len(page) == count:
                await _show_keys(kv, page, values, user)
                shown += len(page)
                page = []
            if shown == count:
                break
        await _show_keys(kv, page, values, user)
        return 0

    return user.run(work)


async def _show_keys(kv: AsyncKv, keys: list[bytes], with_values: bool, user: KvUser) -> None:
    if not with_values:
        write_records([{"key": _text(key)} for key in keys], ("key",), user.output)
        return
    pairs = zip(keys, await kv.get_many(keys), strict=True)
    rows = [
        {"key": _text(key), "value": _text(value)}
        for key, value in pairs
        if value is not None  # else it has ended meanwhile
    ]
    write_records(rows, ("key", "value"), user.output)


def _data(argument: str) -> bytes:
    """As the shell gave it."""
    return argument.encode(errors="surrogateescape")


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


app = App(name="kv", help_format="plaintext")
for name, (place, line) in {
    "table": ("kv_table:app", "Make, look at and drop tables."),
    "user": ("kv_table:user_app", "Say who may use a table."),
    "node": ("kv_node:app", "Run, list and remove nodes."),
    "cluster": ("kv_cluster:app", "Grow, shrink and balance: who has which partitions."),
    "get": ("kv:get", "Show keys' values, and when they end."),
    "set": ("kv:set_", "Give a key a value."),
    "del": ("kv:delete", "Delete keys."),
    "backup": ("kv_backup:app", "Write a table into a folder or an object store."),
    "restore": ("kv_backup:restore_", "Write a backup into a table."),
    "capture": ("kv_capture:capture", "Put a table's changes into a stream."),
    "replay": ("kv_capture:replay", "Apply a stream of changes to a table."),
    "scan": ("kv:scan", "Show the keys of a table."),
}.items():
    # Loaded when they are called.
    app.command(f"raftwood.cli.{place}", name=name, help=line)

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
