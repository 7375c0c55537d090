"""`raftwood kv user`: who may use a table. Clients log in as one of them, and so choose the table.

A user has one table. Passwords are made here and shown once: the cluster keeps their hashes.
"""

from typing import Annotated

from cyclopts import App, Parameter

from raftwood.app.commands.kv_login import LOGIN, LoginTarget, user_row
from raftwood.app.commands.kv_target import KV, KvTarget
from raftwood.app.kv_users import new_user
from raftwood.app.output import write_rows
from raftwood.base.environment import Environment
from raftwood.base.errors import NotFound
from raftwood.zeppelin.meta.client import MetaClient

app = App(name="user", help="Say who may use a table.", help_format="plaintext")

_COLUMNS = {"user": "user", "table": "table", "may": "may"}


@app.command
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


@app.command(name="list")
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
        write_rows(rows, _COLUMNS, target.output)
        return 0

    return target.run(work)


@app.command
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


@app.command
def remove(name: str, *, target: KvTarget = KV) -> int:
    """Let a user in no more; who is logged in is logged out."""

    async def work(meta: MetaClient, _: Environment) -> int:
        await meta.wait_applied(await meta.remove_user(name))
        write_rows([{"user": name}], {"user": "removed user"}, target.output)
        return 0

    return target.run(work)
