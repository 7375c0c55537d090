"""Passwords of a table's users: made here, and told once."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from raftwood.app.commands.kv_target import KV_CLUSTER, KvCluster
from raftwood.app.kv_users import redis_command
from raftwood.app.output import write_json, write_line
from raftwood.app.toml import toml_value
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.model import User

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
