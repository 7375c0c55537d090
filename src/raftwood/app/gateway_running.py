"""A gateway as a process, until it is told to stop."""

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from typing import Final

from raftwood.app.commands.source import Source
from raftwood.app.connecting import awaited_cluster
from raftwood.app.dlog_opening import opened_dlogs
from raftwood.app.event_loop import run
from raftwood.app.gateway_server import GatewayServer
from raftwood.app.output import write_line
from raftwood.app.process import (
    served_over_http,
    stop_on_signals,
    unless_stopped,
    warn_of_open_secrets,
    write_ready_file,
)
from raftwood.app.settings import Settings
from raftwood.base.environment import Environment
from raftwood.base.logs import get_logger, set_up_logs
from raftwood.base.metrics import Metrics
from raftwood.disk.real_environment import real_environment

STOP_S_MAX: Final = 15.0
_log = get_logger("gateway")


def run_gateway(source: Source, connect: str | None, *, ready_file: str | None) -> None:
    """Run one gateway until SIGTERM or SIGINT; `ready_file` is written once it serves."""
    settings = source.load().settings
    with real_environment() as environment:
        set_up_logs(settings.logs, clock=environment.clock)
        warn_of_open_secrets(source, settings)
        run(_serve(environment, settings, connect, ready_file=ready_file))


async def _serve(
    environment: Environment, settings: Settings, connect: str | None, *, ready_file: str | None
) -> None:
    stop = stop_on_signals(environment)
    metrics = Metrics(gateway=settings.gateway.listen)
    servers: list[GatewayServer] = []

    def problem() -> str:
        if stop.is_set():
            return "it is stopping"
        return servers[0].problem() if servers else "it waits for the log stores"

    async with (
        AsyncExitStack() as stack,
        served_over_http(settings, metrics, {"gateway": problem}),
    ):
        cluster = await unless_stopped(stop, awaited_cluster(stack, environment, settings, connect))
        if cluster is None:
            return
        store, logs = cluster
        dlogs = await stack.enter_async_context(opened_dlogs(environment, settings, store))
        server = await GatewayServer.start(
            environment, settings, store, logs, dlogs=dlogs, metrics=metrics
        )
        servers.append(server)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, server.reload_certificates)
        http = f", HTTP on {server.http_address}" if server.http_address else ""
        name = settings.cluster.name
        write_line(f"gateway of cluster {name} serves on {server.address}{http}")
        sys.stdout.flush()
        if ready_file is not None:
            write_ready_file(ready_file, server.address, server.http_address or "-")
        await stop.wait()
        overdue = loop.call_later(
            STOP_S_MAX, environment.end_process, f"the gateway did not stop in {STOP_S_MAX:g} s"
        )
        await server.close()
        overdue.cancel()
    _log.info("stopped")
