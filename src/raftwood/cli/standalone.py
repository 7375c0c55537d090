"""`raftwood standalone`: all parts in one process, until it is told to stop."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated

from cyclopts import App, Parameter

from raftwood.base.environment import Environment
from raftwood.base.logs import get_logger, set_up_logs
from raftwood.base.metrics import Metrics
from raftwood.cli.context import (
    CONTEXT_OPTION,
    ContextOption,
    WrittenContext,
    write_context,
)
from raftwood.cli.output import redis_command, write_line
from raftwood.cli.process import check_ready_file, freeze_start, served_over_http, stop_on_signals
from raftwood.disk.real_environment import real_environment
from raftwood.server.event_loop import run
from raftwood.server.parts import Parts, write_parts
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
    context: ContextOption = CONTEXT_OPTION,
) -> None:
    """Run all of Raftwood in one process on this machine until SIGTERM or SIGINT.

    Nothing has to be installed or configured. What was written is there when it is started again
    with the same folder. It writes a context, by which every command finds it.
    """
    context.check()
    check_ready_file(ready_file)
    folder = os.path.abspath(data)
    settings = standalone_settings(
        folder, port_base=port_base, flags=assignments, checks_ports=True
    )
    with real_environment() as environment:
        set_up_logs(settings.logs, clock=environment.clock)
        run(_serve(environment, folder, settings, ready_file, begin_anew, context))


async def _serve(
    environment: Environment,
    folder: str,
    settings: Settings,
    ready_file: str | None,
    begin_anew: tuple[str, ...],
    context: ContextOption,
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
            written = write_context(
                context, settings, parts, command="standalone", name="standalone"
            )
            tell_parts(folder, parts, written)
            if ready_file is not None:
                write_parts(ready_file, parts)
            await stop.wait()
            reasons[0] = "it is stopping"
            overdue = loop.call_later(
                _STOP_S_MAX, environment.end_process, f"it did not stop in {_STOP_S_MAX:g} s"
            )
        overdue.cancel()
    _log.info("stopped")


def tell_parts(folder: str, parts: Parts, context: WrittenContext | None) -> None:
    """Print where the parts are, and what to do next; secrets on a terminal alone."""
    loghub, kv = parts.loghub, parts.kv
    shows_secrets = sys.stdout.isatty()
    secret_file = f"see {folder}" if context is None else f"see {context.file}"

    def secret(text: str) -> str:
        return text if shows_secrets else secret_file

    lines = [
        f"Raftwood runs, with all its data in {folder}",
        "",
        f"  LogHub, SLS's API and other ways in   {loghub.url}",
        f"  LogHub, native clients                {loghub.native}",
        f"  log service                           {parts.logservice.address}",
        f"  access key                            {loghub.access_key}",
        f"  its secret                            {secret(loghub.access_secret)}",
    ]
    if kv is not None:
        lines += [
            f"  Zeppelin, clients of Redis            {kv.host}:{kv.port}",
            f"  password of its user {kv.user:<17}{secret(kv.password)}",
        ]
    lines += [f"  clogs, shippers of log files          {each}" for each in parts.clogs]
    if parts.stream:
        lines.append(f"  what raftwood ship sends is in        {parts.stream}")
    lines += ["", *_how_to_connect(parts, context, secret), ""]
    lines += [
        "Next, in another terminal:",
        "",
        "  raftwood project create web",
        "  raftwood logstore create web/access",
        "  raftwood produce web/access < access.log",
        "  raftwood tail web/access -f",
    ]
    if parts.stream:
        lines.append("  raftwood ship '/var/log/*.log' --state ship-state")
    if kv is not None:
        lines.append("  raftwood kv set greeting hello")
        if shows_secrets:
            lines.append(f"  {redis_command(f'{kv.host}:{kv.port}', kv.user, kv.password)}")
    for line in lines:
        write_line(line)
    sys.stdout.flush()


def _how_to_connect(
    parts: Parts, context: WrittenContext | None, secret: Callable[[str], str]
) -> list[str]:
    """How commands and programs on this machine find the cluster."""
    if context is None:
        loghub = parts.loghub
        return [
            "No context is written. Commands on LogHub need these settings:",
            "",
            f"  loghub_client.gateways                {loghub.native}",
            f"  loghub_client.access_key              {loghub.access_key}",
            f"  loghub_client.access_secret           {secret(loghub.access_secret)}",
        ]
    if context.is_used:
        return [f"Commands find it by context {context.name}, which is in use: {context.file}"]
    return [
        f"Commands find it by context {context.name} ({context.file}), once it is in use:",
        "",
        f"  raftwood context use {context.name}",
    ]
