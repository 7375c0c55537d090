"""`raftwood gateway`: one gateway of LogHub, until it is told to stop."""

from typing import Annotated

from cyclopts import App, Parameter

from raftwood.base.metrics import Metrics
from raftwood.cli.options import SERVER_DEFAULTS, ServerSource
from raftwood.cli.output import write_line
from raftwood.cli.process import ServerContext, StartedServer, run_server
from raftwood.server.cluster_client import awaited_cluster
from raftwood.server.dlogs import opened_dlogs
from raftwood.server.gateway import GatewayServer


def run_gateway(source: ServerSource, connect: str | None, *, ready_file: str | None) -> None:
    """Run one gateway until SIGTERM or SIGINT; `ready_file` is written once it serves."""
    settings = source.load().settings

    async def start(place: ServerContext) -> StartedServer:
        environment, stack = place.environment, place.stack
        store, logs = await awaited_cluster(stack, environment, settings, connect)
        dlogs = await stack.enter_async_context(opened_dlogs(environment, settings, store))
        server = await GatewayServer.start(
            environment, settings, store, logs, dlogs=dlogs, metrics=place.metrics
        )
        http = f", HTTP on {server.http_address}" if server.http_address else ""
        clogs = f", shippers on {server.clogs_address}" if server.clogs_address else ""
        others = (server.clogs_address,) if server.clogs_address else ()
        return StartedServer(
            server=server,
            line=f"gateway of cluster {settings.cluster.name} serves on {server.address}{http}"
            f"{clogs}",
            addresses=(server.address, server.http_address or "-", *others),
            reload_certificates=server.reload_certificates,
        )

    metrics = Metrics(gateway=settings.gateway.listen)
    run_server("gateway", source, settings, start, ready_file=ready_file, metrics=metrics)


app = App(name="gateway", help_format="plaintext")


@app.command
def start(
    *,
    connect: Annotated[
        str | None,
        Parameter(help="Stores of the log service, HOST:PORT[,…]; else cluster.members."),
    ] = None,
    ready_file: Annotated[
        str | None,
        Parameter(
            help="Written once it serves: its addresses (native, HTTP) and its process number."
        ),
    ] = None,
    source: ServerSource = SERVER_DEFAULTS,
) -> None:
    """Run one gateway until SIGTERM or SIGINT; any number of them may run, none is special.

    It keeps nothing: streams are logs of the log service, all else is in its metastore.
    """

    run_gateway(source, connect, ready_file=ready_file)


@app.command
def openapi() -> None:
    """Print the OpenAPI description of what a gateway serves to SLS clients over HTTP."""
    from raftwood.loghub.server.sls.openapi import openapi_json  # noqa: PLC0415

    write_line(openapi_json().decode())
