"""`raftwood standalone`: all parts in one process, until it is told to stop."""

import asyncio
import os
import signal
import sys
from typing import Annotated

from cyclopts import App, Parameter

from raftwood.base.environment import Environment
from raftwood.base.logs import get_logger, set_up_logs
from raftwood.base.metrics import Metrics
from raftwood.cli.output import redis_command, write_line
from raftwood.cli.process import freeze_start, served_over_http, stop_on_signals
from raftwood.disk.real_environment import real_environment
from raftwood.server.event_loop import run
from raftwood.server.parts import KvPart, Parts, write_parts
from raftwood.server.settings import Settings
from raftwood.server.standalone import PORT_BASE, running_standalone, standalone_settings

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


def tell_parts(folder: str, parts: Parts) -> None:
    loghub = parts.loghub
    for line in (
        f"Raftwood runs, with all its data in {folder}",
        "",
        f"  LogHub, SLS's API and other ways in   {loghub.url}",
        f"  LogHub, native clients                {loghub.native}",
        f"  log service                           {parts.logservice.address}",
        f"  access key                            {loghub.access_key}",
        f"  its secret                            {loghub.access_secret}",
        *_kv_lines(parts.kv),
        *(f"  clogs, shippers of log files          {each}" for each in parts.clogs),
        "",
        "Next, in another terminal:",
        "",
        f"  export RAFTWOOD_LOGHUB_CLIENT__GATEWAYS={loghub.native}",
        f"  export RAFTWOOD_LOGHUB_CLIENT__ACCESS_KEY={loghub.access_key}",
        f"  export RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET={loghub.access_secret}",
        "  raftwood project create web",
        "  raftwood logstore create web/access",
        "  raftwood produce web/access < access.log",
        "  raftwood tail web/access -f",
        *_kv_next(parts.kv),
    ):
        write_line(line)
    sys.stdout.flush()


def _kv_lines(kv: KvPart | None) -> list[str]:
    if kv is None:
        return []
    return [
        f"  Zeppelin, clients of Redis            {kv.host}:{kv.port}",
        f"  password of its user {kv.user:<17}{kv.password}",
    ]


def _kv_next(kv: KvPart | None) -> list[str]:
    if kv is None:
        return []
    return [f"  {redis_command(f'{kv.host}:{kv.port}', kv.user, kv.password)} SET greeting hello"]
