"""`raftwood serve`: one store of a cluster, as a process, until it is told to stop."""

import asyncio
import signal
import sys
from typing import Annotated

from cyclopts import App, Parameter

from raftwood.app.commands.source import DEFAULTS, Source
from raftwood.app.event_loop import run
from raftwood.app.output import write_line
from raftwood.app.settings import Settings
from raftwood.app.store_server import StoreServer, serve
from raftwood.base.environment import Environment
from raftwood.base.logs import bind_context, get_logger, set_up_logs
from raftwood.disk.real_environment import real_environment

app = App(name="serve", help_format="plaintext")

_log = get_logger("store")


@app.default
def main(
    *,
    join: Annotated[
        bool,
        Parameter(negative="", help="This store is no first member: others add it to the cluster."),
    ] = False,
    source: Source = DEFAULTS,
) -> None:
    """Run one store until SIGTERM or SIGINT; then it hands over what it leads, and ends."""
    settings = source.load().settings
    with real_environment() as environment:
        set_up_logs(settings.logs, clock=environment.clock)
        run(_serve(environment, settings, joins=join))


async def _serve(environment: Environment, settings: Settings, *, joins: bool) -> None:
    bind_context(store=settings.node.store_id)
    stop = asyncio.Event()

    def ready(server: StoreServer) -> None:
        write_line(
            f"store {server.host.id} of cluster {settings.cluster.name} serves on {server.address}"
        )
        sys.stdout.flush()

    def stopping(name: str) -> None:
        _log.info("stopping", signal=name)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping, number.name)
    await serve(environment, settings, joins=joins, stop=stop, on_ready=ready)
    _log.info("stopped")
