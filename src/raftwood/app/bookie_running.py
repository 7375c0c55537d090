"""A bookie as a process, until it is told to stop."""

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from typing import Final

from raftwood.app.cluster_network import bookie_network, reload_certificates
from raftwood.app.commands.source import Source
from raftwood.app.connecting import awaited_metastore
from raftwood.app.event_loop import run
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
from raftwood.base.errors import InvalidConfiguration
from raftwood.base.logs import get_logger, set_up_logs
from raftwood.base.metrics import Metrics
from raftwood.disk.real_environment import real_environment
from raftwood.dlog.bookie.server import BookieServer

STOP_S_MAX: Final = 15.0
_log = get_logger("bookie")


def run_bookie(
    source: Source, connect: str | None, *, begins_anew: bool, ready_file: str | None
) -> None:
    """Run one bookie until SIGTERM or SIGINT; `ready_file` is written once it serves."""
    settings = source.load().settings
    if settings.bookie.id.endswith(":0"):
        raise InvalidConfiguration(
            f"bookie.listen is {settings.bookie.listen}: a bookie is known by its address for "
            "ever, so give it a port"
        )
    with real_environment() as environment:
        set_up_logs(settings.logs, clock=environment.clock)
        warn_of_open_secrets(source, settings)
        run(_serve(environment, settings, connect, begins_anew, ready_file))


async def _serve(
    environment: Environment,
    settings: Settings,
    connect: str | None,
    begins_anew: bool,
    ready_file: str | None,
) -> None:
    stop = stop_on_signals(environment)
    metrics = Metrics()
    servers: list[BookieServer] = []

    def problem() -> str:
        if stop.is_set():
            return "it is stopping"
        return servers[0].problem() if servers else "it waits for the metastore"

    async with (
        AsyncExitStack() as stack,
        served_over_http(settings, metrics, {"bookie": problem}),
    ):
        store = await unless_stopped(stop, awaited_metastore(stack, environment, settings, connect))
        if store is None:
            return
        network = bookie_network(settings, settings.bookie.listen)
        server = await BookieServer.start(
            environment,
            settings.bookie,
            store,
            cluster=settings.cluster.name,
            network=network,
            metrics=metrics,
            log_settings=settings.log,
            begins_anew=begins_anew,
        )
        servers.append(server)
        loop = asyncio.get_running_loop()
        if network.tls is not None:
            loop.add_signal_handler(signal.SIGHUP, reload_certificates, [network.tls])
        name, address = settings.cluster.name, server.bookie.id
        write_line(f"bookie {address} of cluster {name} serves on {settings.bookie.listen}")
        sys.stdout.flush()
        if ready_file is not None:
            write_ready_file(ready_file, address)
        await stop.wait()
        overdue = loop.call_later(
            STOP_S_MAX, environment.end_process, f"the bookie did not stop in {STOP_S_MAX:g} s"
        )
        await server.close()
        overdue.cancel()
    _log.info("stopped")
