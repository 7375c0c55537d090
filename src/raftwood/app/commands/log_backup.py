"""`raftwood log backup` and `restore`: a log's records in a folder, and a new log from it."""

from typing import Annotated

from cyclopts import App, Parameter

from raftwood.app.commands.log_target import TARGET, ReadOnly, Target, wait_for_leader
from raftwood.app.output import write_rows
from raftwood.app.progress import Progress
from raftwood.app.settings import Settings
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, Unavailable
from raftwood.logservice.client.backup import back_up
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.client.restore import check_backup, restore
from raftwood.logservice.hakeeper.commands import AddShard
from raftwood.net.stores import Stores

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
    target: Target = TARGET,
) -> int:
    """Write all records of a log, as it is now, into a folder, with checksums."""

    async def work(client: AsyncLogClient, environment: Environment) -> int:
        with Progress("backing up") as progress:
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
    target: Target = TARGET,
) -> int:
    """Make a new log from a backup: its records keep their LSNs, and it goes on after the last.

    Where it was interrupted, the same command goes on with it.
    """
    if name.isdecimal():
        raise InvalidInput(f"a log named {name} would be taken for shard {name}: add a letter")

    async def work(environment: Environment, stores: Stores, settings: Settings) -> int:
        with Progress("checking the backup") as progress:
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
