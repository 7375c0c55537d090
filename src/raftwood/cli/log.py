"""`raftwood log`: make, write, read, truncate, back up and restore the log service's shards."""

import os
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, Unavailable
from raftwood.cli.cluster_target import LOG_TARGET, LogTarget, ReadOnly, shard_of, wait_for_leader
from raftwood.cli.input import append_lines
from raftwood.cli.output import StatusLine, size_text, write_json, write_records, write_rows
from raftwood.logservice.client.backup import back_up, check_backup, restore
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.client.log_client import READ_BYTES, TAIL_WAIT_MS, AsyncLogClient
from raftwood.logservice.hakeeper.commands import AddShard, KeeperShardView, RemoveShard
from raftwood.logservice.hakeeper.messages import is_log
from raftwood.logservice.records import Record
from raftwood.net.stores import Stores
from raftwood.server.cluster import client_network, reader_network
from raftwood.server.settings import Settings

_COLUMNS = {
    "shard": "shard",
    "records": "records",
    "first_lsn": "first LSN",
    "next_lsn": "next LSN",
    "bytes": "bytes",
}


def register(app: App) -> None:
    app.command(backup)
    app.command(restore_log, name="restore")


def backup(
    shard: str,
    folder: Annotated[str, Parameter(help="A new or empty folder.")],
    *,
    read_only: ReadOnly = False,
    target: LogTarget = LOG_TARGET,
) -> int:
    """Write all records of a log, as it is now, into a folder, with checksums."""

    async def work(client: AsyncLogClient, environment: Environment) -> int:
        with StatusLine("backing up") as progress:
            manifest = await back_up(
                client,
                environment.files,
                folder,
                told=lambda records, lsn: progress.say(f"{records:,} records, up to LSN {lsn - 1}"),
            )
        row = {
            "shard": manifest.shard,
            "records": manifest.records,
            "first_lsn": manifest.first_lsn,
            "next_lsn": manifest.next_lsn,
            "bytes": sum(file.length for file in manifest.files),
        }
        write_rows([row], _COLUMNS, target.output)
        return 0

    return target.with_log(shard, work, as_reader=read_only)


def restore_log(
    folder: Annotated[str, Parameter(help="What `raftwood log backup` has made.")],
    name: Annotated[str, Parameter(help="The new log's name.")],
    *,
    replicas: Annotated[
        int | None, Parameter(help="Stores that keep it and vote; else hakeeper.log_replicas.")
    ] = None,
    wait_seconds: Annotated[float, Parameter(help="How long to wait until it serves.")] = 30.0,
    target: LogTarget = LOG_TARGET,
) -> int:
    """Make a new log from a backup: its records keep their LSNs, and it goes on after the last.

    Where it was interrupted, the same command goes on with it.
    """
    if name.isdecimal():
        raise InvalidInput(f"a log named {name} would be taken for shard {name}: add a letter")

    async def work(environment: Environment, stores: Stores, settings: Settings) -> int:
        with StatusLine("checking the backup") as progress:
            manifest = await check_backup(environment.files, folder)
            keeper = KeeperClient(stores)
            try:
                wanted = settings.hakeeper.log_replicas if replicas is None else replicas
                shard = await keeper.number(
                    AddShard(name, wanted, 0, f"restore-{manifest.checksum}")
                )
                view = await wait_for_leader(keeper, shard, wait_seconds)
            finally:
                await keeper.close()
            if not view.leader:
                raise Unavailable(f"shard {shard} has no leader yet: restore again to go on")
            await restore(
                stores,
                shard,
                environment.files,
                folder,
                manifest,
                told=lambda records, lsn: progress.say(f"{records:,} records, up to LSN {lsn - 1}"),
            )
        row = {
            "shard": shard,
            "records": manifest.records,
            "first_lsn": manifest.first_lsn,
            "next_lsn": manifest.next_lsn,
        }
        write_rows([row], {name: _COLUMNS[name] for name in row}, target.output)
        return 0

    return target.with_stores(work)


app = App(name="log", help_format="plaintext")
register(app)

_SHARDS = {
    "shard": "shard",
    "name": "name",
    "leader": "leader",
    "voters": "voters",
    "learners": "readers",
    "kept": "keeps",
}
_RECORD = ("lsn", "data")
_From = Annotated[int | None, Parameter(name="--from", help="The LSN to begin with.")]


@app.command
def create(
    name: Annotated[str | None, Parameter(help="Else it gets a name of its own.")] = None,
    *,
    replicas: Annotated[
        int | None, Parameter(help="Stores that keep it and vote; else hakeeper.log_replicas.")
    ] = None,
    read_replicas: Annotated[int, Parameter(help="Stores that keep it without a vote.")] = 0,
    wait_seconds: Annotated[float, Parameter(help="How long to wait until it serves.")] = 30.0,
    target: LogTarget = LOG_TARGET,
) -> int:
    """Make a log, and wait until it serves; the exit status is 1 if it does not yet."""
    if name is not None and name.isdecimal():
        raise InvalidInput(f"a log named {name} would be taken for shard {name}: add a letter")

    async def work(keeper: KeeperClient, settings: Settings) -> int:
        nonce = os.urandom(8).hex()
        wanted = settings.hakeeper.log_replicas if replicas is None else replicas
        shard = await keeper.number(
            AddShard(name or f"log-{nonce[:8]}", wanted, read_replicas, nonce)
        )
        view = await wait_for_leader(keeper, shard, wait_seconds)
        write_rows([_row(view)], _SHARDS, target.output)
        return 0 if view.leader else 1

    return target.with_keeper(work)


@app.command(name="list")
def list_shards(*, read_only: ReadOnly = False, target: LogTarget = LOG_TARGET) -> int:
    """List the logs."""

    async def work(keeper: KeeperClient, _: Settings) -> int:
        shards = (await keeper.describe()).shards
        rows = [_row(each) for each in shards if is_log(each.shard)]
        write_rows(rows, _SHARDS, target.output)
        return 0

    return target.with_keeper(work, role=reader_network if read_only else client_network)


def _row(shard: KeeperShardView) -> dict[str, Any]:
    return msgspec.structs.asdict(shard) | {
        "leader": shard.leader or None,
        "kept": size_text(shard.retained_bytes),
    }


@app.command
def remove(shard: str, *, target: LogTarget = LOG_TARGET) -> int:
    """Remove a log, by number or name, with all its records, on all stores."""

    async def work(keeper: KeeperClient, _: Settings) -> int:
        view = await keeper.find_shard(shard_of(shard))
        await keeper.command(RemoveShard(view.shard))
        removed = {"shard": view.shard, "name": view.name}
        write_rows([removed], {"shard": "removed shard", "name": "name"}, target.output)
        return 0

    return target.with_keeper(work)


@app.command
def append(
    shard: str,
    *data: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True, help="A record each; - or none for lines of the input."
        ),
    ],
    file: Annotated[str | None, Parameter(help="A record for each line of this file.")] = None,
    target: LogTarget = LOG_TARGET,
) -> int:
    """Append records, and tell their LSNs once they are durable on a majority."""
    for each in data:
        if each.startswith("--"):
            raise InvalidInput(f"unknown option {each}: a record like this comes by the input")
    if file is not None and data:
        raise InvalidInput("give records, or a file with --file, not both")

    async def work(client: AsyncLogClient, _: Environment) -> int:
        if file is not None or data in ((), ("-",)):
            await append_lines(client, file, target.output)
            return 0
        lsns = await client.append_many([each.encode(errors="surrogateescape") for each in data])
        write_rows([{"lsn": lsn} for lsn in lsns], {"lsn": "lsn"}, target.output)
        return 0

    return target.with_log(shard, work, writes=True)


@app.command
def read(
    shard: str,
    *,
    first: _From = None,
    count: Annotated[int | None, Parameter(help="End after so many records.")] = None,
    size: Annotated[
        int | None, Parameter(name="--bytes", help="End after so many bytes of records.")
    ] = None,
    read_only: ReadOnly = False,
    target: LogTarget = LOG_TARGET,
) -> int:
    """Print a log's records, a line each, up to its end; with JSON, one object per line."""
    _check_limit("--count", count)
    _check_limit("--bytes", size)

    async def work(client: AsyncLogClient, _: Environment) -> int:
        printer = _Printer(target, count=count, size=size)
        info = (await client.info()).log
        lsn = info.first_lsn if first is None else first
        while not printer.is_done:
            records, following = await client.read(lsn, bytes_max=READ_BYTES)
            printer.write(records)
            # What comes while it is printed is for `tail`.
            if following == lsn or following >= info.next_lsn:
                break
            lsn = following
        return 0

    return target.with_log(shard, work, as_reader=read_only)


@app.command
def tail(
    shard: str,
    *,
    first: _From = None,
    count: Annotated[int | None, Parameter(help="End after so many records.")] = None,
    read_only: ReadOnly = False,
    target: LogTarget = LOG_TARGET,
) -> int:
    """Print records as they come, from now on or from an LSN on, until it is interrupted."""
    _check_limit("--count", count)

    async def work(client: AsyncLogClient, _: Environment) -> int:
        printer = _Printer(target, count=count)
        lsn = (await client.info()).log.next_lsn if first is None else first
        while not printer.is_done:
            records, lsn = await client.read(lsn, wait_ms=TAIL_WAIT_MS)
            printer.write(records)
        return 0

    return target.with_log(shard, work, as_reader=read_only)


@app.command
def truncate(
    shard: str,
    lsn: Annotated[int, Parameter(help="The last LSN to let go of.")],
    *,
    target: LogTarget = LOG_TARGET,
) -> int:
    """Let go of all records up to and with an LSN; their space is freed soon after."""

    async def work(client: AsyncLogClient, _: Environment) -> int:
        await client.truncate(lsn)
        log = (await client.info()).log
        row = {"truncated_lsn": log.truncated_lsn, "first_lsn": log.first_lsn}
        columns = {"truncated_lsn": "truncated up to", "first_lsn": "first readable"}
        write_rows([row], columns, target.output)
        return 0

    return target.with_log(shard, work, writes=True)


@app.command
def info(shard: str, *, read_only: ReadOnly = False, target: LogTarget = LOG_TARGET) -> int:
    """Show a log's bounds, leaseholder, members and size, as its leader sees them."""

    async def work(client: AsyncLogClient, _: Environment) -> int:
        found = msgspec.to_builtins(await client.info())
        log = found.pop("log")
        if target.output == "json":
            write_json([found | log])
            return 0
        log["lease_history"] = len(log["lease_history"])
        rows = [{"name": name, "value": value} for name, value in (found | log).items()]
        write_rows(rows, {"name": "property", "value": "value"}, "text")
        return 0

    return target.with_log(shard, work, as_reader=read_only)


def _check_limit(option: str, limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise InvalidInput(f"{option} {limit} shows nothing: give 1 or more")


class _Printer:
    """Prints records up to a limit."""

    def __init__(self, target: LogTarget, *, count: int | None, size: int | None = None) -> None:
        self._output = target.output
        self._count = count
        self._size = size

    @property
    def is_done(self) -> bool:
        return self._count == 0 or (self._size is not None and self._size <= 0)

    def write(self, records: list[Record]) -> None:
        write_records(map(_shown, self._within_limits(records)), _RECORD, self._output)

    def _within_limits(self, records: list[Record]) -> Iterator[Record]:
        for record in records:
            if self.is_done:
                return
            if self._count is not None:
                self._count -= 1
            if self._size is not None:
                self._size -= len(record.payload)
            yield record


def _shown(record: Record) -> dict[str, Any]:
    payload = bytes(record.payload)
    shown: dict[str, Any] = {"lsn": record.lsn, "holder": record.holder}
    try:
        return shown | {"data": payload.decode()}
    except UnicodeDecodeError:
        # As it is, for machines; as well as it can be read, for people.
        return shown | {"data": payload.decode(errors="backslashreplace"), "base64": payload}
