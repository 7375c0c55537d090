"""`raftwood kv table` and `kv user`: make and drop tables, and say who may use them.

A user has one table; clients log in as one of its users, and so choose the table. Passwords are
made here and shown once: the cluster keeps their hashes.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from raftwood.base.environment import Environment
from raftwood.base.errors import AlreadyExists, NotFound
from raftwood.base.names import checked_name
from raftwood.base.text import BYTES
from raftwood.cli.cluster_target import KV, KV_CLUSTER, KvCluster, KvTarget
from raftwood.cli.kv_overview import Overview
from raftwood.cli.options import is_confirmed, quantity_of, toml_value
from raftwood.cli.output import redis_command, size_text, write_json, write_line, write_rows
from raftwood.server.parts import new_user
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.model import (
    Ack,
    NodeId,
    OnMetaLoss,
    Reads,
    Table,
    TableConfig,
    Topology,
    User,
    checked_table_name,
)

_VARIABLE = "RAFTWOOD_ZEPPELIN_CLIENT__"


@Parameter(name="*")
@dataclass(frozen=True)
class LoginTarget:
    """Which cluster, and how to tell what its clients log in with."""

    cluster: KvCluster = KV_CLUSTER
    output: Annotated[
        Literal["text", "toml", "env", "json"],
        Parameter(
            name="--format",
            help="For people, as a section to add to a client's TOML file, as variables for its "
            "environment, or as JSON.",
        ),
    ] = "text"

    async def tell(self, meta: MetaClient, epoch: int, user: User, password: str) -> None:
        """Tell it once the nodes know the user; where they don't in time, too: nobody else has the
        password.
        """
        nodes = (await meta.topology()).nodes.values()
        addresses = [each.addresses.data for each in nodes if each.is_up]
        try:
            await meta.wait_applied(epoch)
        finally:
            self._write(addresses, user, password)

    def _write(self, addresses: Sequence[str], user: User, password: str) -> None:
        if self.output == "json":
            write_json([user_row(user) | {"password": password, "addresses": addresses}])
        elif self.output == "text":
            _tell_people(addresses, user, password)
        else:
            _write_section(self.output, addresses, user, password)


LOGIN = LoginTarget()


def user_row(user: User) -> dict[str, Any]:
    may = "read and write" if user.may_write else "read"
    return {"user": user.name, "table": user.table, "may": may}


def _tell_people(addresses: Sequence[str], user: User, password: str) -> None:
    write_line(f"table     {user.table}")
    write_line(f"user      {user.name}")
    write_line(f"password  {password}   (shown now and never again)")
    if addresses:
        write_line("")
        write_line("Next:")
        write_line("")
        write_line(f"  {redis_command(addresses[0], user.name, password)}")


def _write_section(output: str, addresses: Sequence[str], user: User, password: str) -> None:
    values: dict[str, Any] = {"addresses": addresses, "user": user.name, "password": password}
    if output == "env":
        for name, value in (values | {"addresses": ",".join(addresses)}).items():
            write_line(f"export {_VARIABLE}{name.upper()}={shlex.quote(str(value))}")
        return
    write_line("# Keep this to yourself: whoever knows it can do what the user may.")
    write_line("[zeppelin_client]")
    for name, value in values.items():
        write_line(f"{name} = {toml_value(value)}")


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
    replicas: Annotated[
        int | None, Parameter(help="The master and its slaves; else 3, or one for each node.")
    ] = None
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

    def config(self, *, nodes: int) -> TableConfig:
        """Of a table in a cluster of so many nodes, up or down."""
        usual = min(REPLICAS, max(self.min_replicas, nodes or REPLICAS))
        return TableConfig(
            partitions=self.partitions,
            replicas=usual if self.replicas is None else self.replicas,
            ack=self.ack,
            min_replicas=self.min_replicas,
            on_meta_loss=self.on_meta_loss,
            lag_max_bytes=quantity_of("--lag-max", self.lag_max, BYTES),
        )


_DEFAULT = _Options()
REPLICAS = 3
"""Of a table whose maker does not say, where there are as many nodes."""


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
    options.config(nodes=REPLICAS)  # a mistake in them is reported before anything connects
    user_name = checked_name("user", user or checked_table_name(name))

    async def work(meta: MetaClient, environment: Environment) -> int:
        topology = await meta.topology()
        if user_name in topology.users:
            raise AlreadyExists(f"user {user_name!r} exists: choose another one by --user")
        made, password = new_user(environment, user_name, name, may_write=True)
        # One after the other: a table of somebody else must not get this user.
        await meta.create_table(name, options.config(nodes=len(topology.nodes)))
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
    write_rows(rows, {"name": "property", "value": "value"}, "text")
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


user_app = App(name="user", help="Say who may use a table.", help_format="plaintext")

_USER_COLUMNS = {"user": "user", "table": "table", "may": "may"}


@user_app.command
def add(
    name: str,
    *,
    table: Annotated[str, Parameter(help="The table that it may use, and no other.")],
    read_only: Annotated[bool, Parameter(negative="", help="It may not write.")] = False,
    target: LoginTarget = LOGIN,
) -> int:
    """Let somebody use a table; the password is shown now and never again."""

    async def work(meta: MetaClient, environment: Environment) -> int:
        user, password = new_user(environment, name, table, may_write=not read_only)
        await target.tell(meta, await meta.add_user(user), user, password)
        return 0

    return target.cluster.run(work)


@user_app.command(name="list")
def list_users(
    *,
    table: Annotated[str | None, Parameter(help="Only those of this table.")] = None,
    target: KvTarget = KV,
) -> int:
    """List users, without their passwords, which nobody knows."""

    async def work(meta: MetaClient, _: Environment) -> int:
        topology = await meta.topology()
        if table is not None and table not in topology.tables:
            raise NotFound(f"there is no table {table!r}: see `raftwood kv table list`")
        users = sorted(topology.users.values(), key=lambda each: (each.table, each.name))
        rows = [user_row(each) for each in users if table in (None, each.table)]
        write_rows(rows, _USER_COLUMNS, target.output)
        return 0

    return target.run(work)


@user_app.command
def password(name: str, *, target: LoginTarget = LOGIN) -> int:
    """Give a user a new password; who came in with the old one is logged out."""

    async def work(meta: MetaClient, environment: Environment) -> int:
        known = (await meta.topology()).users.get(name)
        if known is None:
            raise NotFound(f"there is no user {name!r}: see `raftwood kv user list`")
        user, secret = new_user(environment, name, known.table, may_write=known.may_write)
        epoch = await meta.set_password(name, user.password_hash)
        await target.tell(meta, epoch, user, secret)
        return 0

    return target.cluster.run(work)


@user_app.command
def remove(name: str, *, target: KvTarget = KV) -> int:
    """Let a user in no more; who is logged in is logged out."""

    async def work(meta: MetaClient, _: Environment) -> int:
        await meta.wait_applied(await meta.remove_user(name))
        write_rows([{"user": name}], {"user": "removed user"}, target.output)
        return 0

    return target.run(work)
