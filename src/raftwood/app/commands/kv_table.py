"""`raftwood kv table`: make, look at and drop tables."""

from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import App, Parameter

from raftwood.app.commands.confirmation import is_confirmed
from raftwood.app.commands.kv_login import LOGIN, LoginTarget
from raftwood.app.commands.kv_target import KV, KvTarget
from raftwood.app.commands.quantities import quantity_of
from raftwood.app.kv_overview import Overview
from raftwood.app.kv_users import new_user
from raftwood.app.output import size_text, write_json, write_line, write_rows
from raftwood.base.environment import Environment
from raftwood.base.errors import AlreadyExists, NotFound
from raftwood.base.names import checked_name
from raftwood.base.quantities import BYTES
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.model import (
    Ack,
    NodeId,
    OnMetaLoss,
    Reads,
    Table,
    TableConfig,
    Topology,
    checked_table_name,
)

app = App(name="table", help="Make, look at and drop tables.", help_format="plaintext")

_COLUMNS = {
    "table": "table",
    "partitions": "partitions",
    "replicas": "replicas",
    "ack": "ack",
    "min_replicas": "min replicas",
    "reads": "reads",
    "on_meta_loss": "on meta loss",
    "users": "users",
}
_PARTITIONS = {
    "partition": "partition",
    "slots": "slots",
    "state": "state",
    "master": "master",
    "slaves": "slaves, and how far behind",
}


@Parameter(name="*")
@dataclass(frozen=True)
class _Options:
    """What is chosen when a table is made; `docs/zeppelin.md` says what is lost when."""

    partitions: Annotated[int, Parameter(help="The slots are split among so many.")] = 16
    replicas: Annotated[int, Parameter(help="The master and its slaves.")] = 3
    ack: Annotated[
        Ack,
        Parameter(
            help="A write is acked once it is in memory, written to the operating system, or "
            "synced to disk."
        ),
    ] = "written"
    min_replicas: Annotated[
        int, Parameter(help="So many have a write before it is acked, the master among them.")
    ] = 1
    on_meta_loss: Annotated[
        OnMetaLoss,
        Parameter(help="What a master does that hears nothing from the meta server."),
    ] = "stop"
    lag_max: Annotated[
        str, Parameter(help="A slave further behind does not become master by itself.")
    ] = "64MiB"

    def config(self) -> TableConfig:
        return TableConfig(
            partitions=self.partitions,
            replicas=self.replicas,
            ack=self.ack,
            min_replicas=self.min_replicas,
            on_meta_loss=self.on_meta_loss,
            lag_max_bytes=quantity_of("--lag-max", self.lag_max, BYTES),
        )


_DEFAULT = _Options()


@app.command
def create(
    name: str,
    *,
    user: Annotated[
        str | None, Parameter(help="Its first user, who may write; else named as the table.")
    ] = None,
    options: _Options = _DEFAULT,
    target: LoginTarget = LOGIN,
) -> int:
    """Make a table and a user of it, and wait until the nodes serve it.

    The user's password is shown now and never again.
    """
    config = options.config()
    user_name = checked_name("user", user or checked_table_name(name))

    async def work(meta: MetaClient, environment: Environment) -> int:
        if user_name in (await meta.topology()).users:
            raise AlreadyExists(f"user {user_name!r} exists: choose another one by --user")
        made, password = new_user(environment, user_name, name, may_write=True)
        # One after the other: a table of somebody else must not get this user.
        await meta.create_table(name, config)
        await target.tell(meta, await meta.add_user(made), made, password)
        return 0

    return target.cluster.run(work)


@app.command
def reads(name: str, tell: Reads, *, target: KvTarget = KV) -> int:
    """Choose what reads of a table tell: what is durable as its writes are, or the latest.

    As a table is made, its reads are durable where --min-replicas is above 1.
    """
    target.cluster.check_stores_know_reads()

    async def work(meta: MetaClient, _: Environment) -> int:
        await meta.wait_applied(await meta.set_reads(name, tell))
        return await _show(meta, name, target)

    return target.run(work)


@app.command
def drop(
    name: str,
    *,
    yes: Annotated[bool, Parameter(help="Do it without asking.", negative=())] = False,
    target: KvTarget = KV,
) -> int:
    """Remove a table with all that is in it, and its users."""

    async def work(meta: MetaClient, _: Environment) -> int:
        topology = await meta.topology()
        table = _table(topology, name)
        users = [each.name for each in topology.users.values() if each.table == name]
        if not yes:
            write_line(
                f"table {name} has {len(table.partitions)} partitions, and its users are "
                f"{', '.join(users) or 'none'}. All of it will be gone for ever."
            )
            if not is_confirmed():
                write_line("nothing was changed")
                return 1
        await meta.wait_applied(await meta.drop_table(name))
        row = {"table": name, "users": users}
        write_rows([row], {"table": "dropped table", "users": "and its users"}, target.output)
        return 0

    return target.run(work)


@app.command(name="list")
def list_tables(*, target: KvTarget = KV) -> int:
    """List the tables."""

    async def work(meta: MetaClient, _: Environment) -> int:
        topology = await meta.topology()
        tables = [table for _, table in sorted(topology.tables.items())]
        write_rows(_rows(topology, tables), _COLUMNS, target.output)
        return 0

    return target.run(work)


@app.command
def info(name: str, *, target: KvTarget = KV) -> int:
    """Show a table, and who has its partitions."""

    async def work(meta: MetaClient, _: Environment) -> int:
        return await _show(meta, name, target)

    return target.run(work)


@app.command
def master(
    name: str,
    partition: int,
    node: str,
    *,
    lose_writes: Annotated[
        bool,
        Parameter(
            negative="",
            help="The partition has no master, and this replica becomes it whatever it has missed.",
        ),
    ] = False,
    target: KvTarget = KV,
) -> int:
    """Choose who of its replicas is to be a partition's master; it is handed over safely."""

    async def work(meta: MetaClient, _: Environment) -> int:
        choose = meta.force_master if lose_writes else meta.set_master
        await choose(name, partition, NodeId(node))
        return await _show(meta, name, target)

    return target.run(work)


async def _show(meta: MetaClient, name: str, target: KvTarget) -> int:
    topology = await meta.topology()
    table = _table(topology, name)
    partitions = Overview(topology, await meta.reports()).partitions(table)
    (about,) = _rows(topology, [table])
    if target.output == "json":
        write_json(about | {"partition_list": partitions})
        return 0
    about["lag_max_bytes"] = size_text(about["lag_max_bytes"])
    rows = [{"name": key.replace("_", " "), "value": value} for key, value in about.items()]
    write_rows(rows, {"name": "of the table", "value": "value"}, "text")
    shown = [
        row
        | {
            "slots": "{}-{}".format(*row["slots"]),
            "slaves": ", ".join(map(_slave_text, row["slaves"])) or None,
        }
        for row in partitions
    ]
    write_line("")
    write_rows(shown, _PARTITIONS, "text")
    return 0


def _slave_text(slave: dict[str, Any]) -> str:
    lag, state = slave["lag_bytes"], slave["state"]
    # How far one was that is down says little by now.
    behind = [] if lag is None or state == "down" else [size_text(lag)]
    return f"{slave['node']} ({', '.join([state, *behind])})"


def _rows(topology: Topology, tables: list[Table]) -> list[dict[str, Any]]:
    return [
        {
            "table": each.name,
            "partitions": len(each.partitions),
            "replicas": each.config.replicas,
            "ack": each.config.ack,
            "min_replicas": each.config.min_replicas,
            "reads": "durable" if each.has_durable_reads else "latest",
            "on_meta_loss": each.config.on_meta_loss,
            "lag_max_bytes": each.config.lag_max_bytes,
            "users": sorted(
                user.name for user in topology.users.values() if user.table == each.name
            ),
        }
        for each in tables
    ]


def _table(topology: Topology, name: str) -> Table:
    found = topology.tables.get(name)
    if found is None:
        raise NotFound(f"there is no table {name!r}: see `raftwood kv table list`")
    return found
