"""`raftwood key`: operators make and revoke the keys that LogHub's clients come with."""

import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from raftwood.base.configuration import DEFAULT_ORIGIN
from raftwood.base.errors import InvalidInput
from raftwood.cli.options import DEFAULTS, Source, toml_value
from raftwood.cli.output import Format, time_text, write_json, write_line, write_rows
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.model import ROLES, AccessKey, AccessRole
from raftwood.loghub.server.access import AccessControl
from raftwood.loghub.server.metadata import Metadata
from raftwood.server.cluster_client import connected_cluster
from raftwood.server.event_loop import run

app = App(name="key", help_format="plaintext")

_COLUMNS = {"id": "key", "may": "roles", "created": "made", "description": "description"}
_VARIABLE = "RAFTWOOD_LOGHUB_CLIENT__"
_Output = Annotated[Format, Parameter(name="--format", help="How to print it.")]


@Parameter(name="*")
@dataclass(frozen=True)
class _Cluster:
    """The stores whose metastore keeps the keys."""

    connect: Annotated[
        str | None,
        Parameter(help="Stores of the log service, HOST:PORT[,HOST:PORT]; else cluster.members."),
    ] = None
    source: Source = DEFAULTS

    def run(self, work: Callable[[AccessControl], Awaitable[None]]) -> None:
        settings = self.source.load().settings

        async def main() -> None:
            async with connected_cluster(environment, settings, self.connect) as (store, _):
                await work(AccessControl(environment, Metadata(store)))

        with real_environment() as environment:
            run(main())


_CLUSTER = _Cluster()


@app.command
def create(
    *roles: Annotated[
        str,
        Parameter(
            help="PROJECT=ROLE: reader, writer or admin; * stands for every project, and *=admin "
            "may make projects as well."
        ),
    ],
    description: Annotated[str, Parameter(help="Whom or what it is for.")] = "",
    output: Annotated[
        Literal["toml", "env", "json"],
        Parameter(
            name="--format",
            help="A section to add to a client's TOML file, variables for its environment, or "
            "JSON.",
        ),
    ] = "toml",
    cluster: _Cluster = _CLUSTER,
) -> None:
    """Make an access key; its secret is shown now and never again."""
    given = roles_of(roles)

    gateways = _gateways(cluster.source)

    async def work(access: AccessControl) -> None:
        key = await access.create(given, description=description)
        if output == "json":
            write_json([msgspec.to_builtins(key)])
            return
        values = {"gateways": gateways, "access_key": key.id, "access_secret": key.secret}
        if output == "env":
            for name, value in (values | {"gateways": ",".join(gateways)}).items():
                write_line(f"export {_VARIABLE}{name.upper()}={shlex.quote(str(value))}")
            return
        write_line("# Keep this to yourself: whoever knows it can do what the key may.")
        write_line("[loghub_client]")
        for name, value in values.items():
            write_line(f"{name} = {toml_value(value)}")

    cluster.run(work)


@app.command(name="list")
def list_keys(*, output: _Output = "text", cluster: _Cluster = _CLUSTER) -> None:
    """List the access keys, without their secrets."""

    async def work(access: AccessControl) -> None:
        write_rows([_row(each) for each in await access.keys()], _COLUMNS, output)

    cluster.run(work)


@app.command
def revoke(
    key: Annotated[str, Parameter(help="Its id.")],
    *,
    output: _Output = "text",
    cluster: _Cluster = _CLUSTER,
) -> None:
    """Let nobody in with a key any more; gateways hear of it within a moment."""

    async def work(access: AccessControl) -> None:
        await access.revoke(key)
        write_rows([{"id": key}], {"id": "revoked key"}, output)

    cluster.run(work)


def roles_of(given: tuple[str, ...]) -> dict[str, AccessRole]:
    """From PROJECT=ROLE each."""
    roles: dict[str, AccessRole] = {}
    for each in given:
        project, _, role = each.partition("=")
        if not project or role not in ROLES:
            raise InvalidInput(f"{each[:140]!r} is no role: write PROJECT=reader, writer or admin")
        if project in roles:
            raise InvalidInput(f"project {project[:140]} has two roles: give one")
        roles[project] = AccessRole(role)
    if not roles:
        raise InvalidInput("a key without a role is of no use: give PROJECT=ROLE, or '*=admin'")
    return roles


def _gateways(source: Source) -> tuple[str, ...]:
    """Those that clients use; where nobody says, the one that these settings start."""
    configuration = source.load()
    if configuration.origin("loghub_client.gateways") != DEFAULT_ORIGIN:
        return configuration.settings.loghub_client.gateways
    return (configuration.settings.gateway.listen,)


def _row(key: AccessKey) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(key)
    del row["secret"]
    row["created"] = time_text(key.created_s)
    row["may"] = " ".join(f"{project}={role.value}" for project, role in key.roles.items())
    return row
