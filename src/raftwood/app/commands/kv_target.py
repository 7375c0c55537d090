"""How a command reaches Zeppelin's meta server, and what it tells whoever is to log in."""

import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from raftwood.app.commands.source import DEFAULTS, Source
from raftwood.app.connecting import connected_zeppelin
from raftwood.app.event_loop import run
from raftwood.app.output import Format, write_line
from raftwood.base.environment import Environment
from raftwood.disk.real_environment import real_environment
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.model import Topology, User
from raftwood.zeppelin.passwords import password_hash

_PASSWORD_BYTES = 20


@Parameter(name="*")
@dataclass(frozen=True)
class KvTarget:
    """Which cluster, and how to print what came of it."""

    connect: Annotated[
        str | None,
        Parameter(
            help="Stores of the log service, HOST:PORT[,HOST:PORT]; else cluster.members of the "
            "settings."
        ),
    ] = None
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text"
    source: Source = DEFAULTS

    def run(self, work: Callable[[MetaClient, Environment], Coroutine[Any, Any, int]]) -> int:
        """Do something with the meta server; answers the exit status."""
        settings = self.source.load().settings

        async def main() -> int:
            async with connected_zeppelin(environment, settings, self.connect) as meta:
                return await work(meta, environment)

        with real_environment() as environment:
            return run(main())


KV = KvTarget()


def new_user(
    environment: Environment, name: str, table: str, *, may_write: bool
) -> tuple[User, str]:
    """A user, and the password that nobody else will ever see again."""
    password = secrets.token_hex(_PASSWORD_BYTES)
    kept = password_hash(password.encode(), environment.random)
    return User(name=name, table=table, password_hash=kept, may_write=may_write), password


def tell_login(topology: Topology, user: User, password: str) -> None:
    """For people: what to type to get in."""
    write_line(f"user     {user.name}, of table {user.table}")
    write_line(f"password {password}   (shown now and never again)")
    up = [each for each in topology.nodes.values() if each.is_up]
    if up:
        write_line("")
        write_line("Next:")
        write_line("")
        write_line(f"  {redis_command(up[0].addresses.data, user.name, password)}")


def redis_command(address: str, user: str, password: str) -> str:
    """How to log in with Redis's own tool."""
    host, _, port = address.rpartition(":")
    return f"redis-cli -c -h {host} -p {port} --user {user} --pass {password} --no-auth-warning"
