"""A server as a process: its signals, its health over HTTP, and the file that says it is ready."""

import asyncio
import gc
import os
import signal
import stat
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from raftwood.app.commands.source import Source
from raftwood.app.http_server import Check, HttpServer
from raftwood.app.settings import Settings
from raftwood.base.environment import Environment
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics

_Result = TypeVar("_Result")
_log = get_logger("process")


def stop_on_signals(environment: Environment) -> asyncio.Event:
    """Set by SIGTERM or SIGINT; a second one ends the process at once."""
    stop = asyncio.Event()

    def stopping(name: str) -> None:
        if stop.is_set():
            environment.end_process(f"{name} came a second time")
        # First of all: nobody may read the log any more, and then the line below raises.
        stop.set()
        _log.info("stopping", signal=name)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping, number.name)
    return stop


async def unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, _Result]) -> _Result | None:
    """What comes of the work; None where it is given up, as the process is to stop."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not working.done():
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return None
    return working.result()


@asynccontextmanager
async def served_over_http(
    settings: Settings, metrics: Metrics, checks: Mapping[str, Check]
) -> AsyncIterator[None]:
    """Health and metrics, where `http.listen` says so."""
    if not settings.http.listen:
        yield
        return
    server = await HttpServer.start(
        settings.http,
        metrics=metrics,
        token=settings.secrets.metrics,
        checks=checks,
        connections=settings.connections,
    )
    _log.info("health and metrics are served", address=server.address)
    try:
        yield
    finally:
        await server.close()


def write_ready_file(path: str, *addresses: str) -> None:
    """Whoever waits for the file finds it whole: the addresses, and the process."""
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(f"{' '.join(addresses)} {os.getpid()}\n")
    os.replace(f"{path}.new", path)


def freeze_start() -> None:
    """What is in memory by now stays until the end: spare the garbage collector from looking at it.

    A full collection looks at all that the libraries have made, and holds the loop meanwhile.
    """
    gc.collect()
    gc.freeze()


def warn_of_open_secrets(source: Source, settings: Settings) -> None:
    """Whoever reads the file can act as a store, or as an operator."""
    secrets = settings.secrets
    if source.file is None or not (secrets.stores or secrets.operators):
        return
    if stat.S_IMODE(os.stat(source.file).st_mode) & (stat.S_IRGRP | stat.S_IROTH):
        _log.warning("others can read the secrets", file=source.file, remedy="chmod 600")
