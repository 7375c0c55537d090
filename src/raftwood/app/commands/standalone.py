"""`raftwood standalone`: all parts in one process, until it is told to stop."""

import asyncio
import os
import signal
from typing import Annotated

from cyclopts import App, Parameter

from raftwood.app.event_loop import run
from raftwood.app.parts import tell_parts, write_parts
from raftwood.app.process import freeze_start, served_over_http, stop_on_signals
from raftwood.app.settings import Settings
from raftwood.app.standalone import PORT_BASE, running_standalone, standalone_settings
from raftwood.base.environment import Environment
from raftwood.base.logs import get_logger, set_up_logs
from raftwood.base.metrics import Metrics
from raftwood.disk.real_environment import real_environment

app = App(name="standalone", help_format="plaintext")
_STOP_S_MAX = 20.0
_log = get_logger("standalone")


@app.default
def standalone(
    *,
    data: Annotated[str, Parameter(help="Folder that keeps everything.")] = "raftwood-standalone",
    port_base: Annotated[
        int, Parameter(help="The first of the ports, all on this machine's loopback address.")
    ] = PORT_BASE,
    ready_file: Annotated[
        str | None,
        Parameter(help="Written once all is ready: JSON, with a part for each service."),
    ] = None,
    begin_anew: Annotated[
        tuple[str, ...],
        Parameter(
            negative="",
            help="A bookie, such as embedded-1, whose folder is damaged: it begins in an empty "
            "one; then run raftwood bookie repair.",
        ),
    ] = (),
    assignments: Annotated[
        tuple[str, ...],
        Parameter(name="--set", negative="", help="One setting, section.key=value; repeatable."),
    ] = (),
) -> None:
    """Run all of Raftwood in one process on this machine until SIGTERM or SIGINT.

    Nothing has to be installed or configured. What was written is there when it is started again
    with the same folder.
    """
    folder = os.path.abspath(data)
    settings = standalone_settings(folder, port_base=port_base, flags=assignments)
    with real_environment() as environment:
        set_up_logs(settings.logs, clock=environment.clock)
        run(_serve(environment, folder, settings, ready_file, begin_anew))


async def _serve(
    environment: Environment,
    folder: str,
    settings: Settings,
    ready_file: str | None,
    begin_anew: tuple[str, ...],
) -> None:
    stop = stop_on_signals(environment)
    metrics = Metrics(node="standalone")
    reasons = ["it is being started"]

    async with served_over_http(settings, metrics, {"standalone": lambda: reasons[0]}):
        async with running_standalone(
            environment, folder, settings, metrics=metrics, begin_anew=begin_anew
        ) as running:
            parts, gateway = running
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, gateway.reload_certificates)
            reasons[0] = ""
            freeze_start()
            tell_parts(folder, parts)
            if ready_file is not None:
                write_parts(ready_file, parts)
            await stop.wait()
            reasons[0] = "it is stopping"
            overdue = loop.call_later(
                _STOP_S_MAX, environment.end_process, f"it did not stop in {_STOP_S_MAX:g} s"
            )
        overdue.cancel()
    _log.info("stopped")
