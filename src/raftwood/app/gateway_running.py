"""A gateway as a process, until it is told to stop."""

from raftwood.app.commands.source import Source
from raftwood.app.connecting import awaited_cluster
from raftwood.app.dlog_opening import opened_dlogs
from raftwood.app.gateway_server import GatewayServer
from raftwood.app.serving import Place, Started, run_server
from raftwood.base.metrics import Metrics


def run_gateway(source: Source, connect: str | None, *, ready_file: str | None) -> None:
    """Run one gateway until SIGTERM or SIGINT; `ready_file` is written once it serves."""
    settings = source.load().settings

    async def start(place: Place) -> Started:
        environment, stack = place.environment, place.stack
        store, logs = await awaited_cluster(stack, environment, settings, connect)
        dlogs = await stack.enter_async_context(opened_dlogs(environment, settings, store))
        server = await GatewayServer.start(
            environment, settings, store, logs, dlogs=dlogs, metrics=place.metrics
        )
        http = f", HTTP on {server.http_address}" if server.http_address else ""
        clogs = f", shippers on {server.clogs_address}" if server.clogs_address else ""
        others = (server.clogs_address,) if server.clogs_address else ()
        return Started(
            server=server,
            line=f"gateway of cluster {settings.cluster.name} serves on {server.address}{http}"
            f"{clogs}",
            addresses=(server.address, server.http_address or "-", *others),
            reload_certificates=server.reload_certificates,
        )

    metrics = Metrics(gateway=settings.gateway.listen)
    run_server("gateway", source, settings, start, ready_file=ready_file, metrics=metrics)
