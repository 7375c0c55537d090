"""A server as a process: it waits for the cluster, serves, and ends in order.

Its signals, its health over HTTP, and the file that says it is ready.
"""

import asyncio
import gc
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Protocol, TypeVar

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput
from raftwood.base.logs import get_logger, set_up_logs
from raftwood.base.metrics import Metrics
from raftwood.cli.options import ServerSource
from raftwood.cli.output import write_line
from raftwood.disk.real_environment import real_environment
from raftwood.server.event_loop import run
from raftwood.server.http_server import Check, HttpServer
from raftwood.server.settings import Settings

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


def check_ready_file(path: str | None) -> None:
    """Refuse a ready file that could not be written, before anything starts."""
    folder = os.path.dirname(os.path.abspath(path)) if path is not None else ""
    if folder and not os.path.isdir(folder):
        raise InvalidInput(f"--ready-file {path}: there is no folder {folder}; make it first")


def freeze_start() -> None:
    """What is in memory by now stays until the end: spare the garbage collector from looking at it.

    A full collection looks at all that the libraries have made, and holds the loop meanwhile.
    """
    gc.collect()
    gc.freeze()


def warn_of_open_secrets(source: ServerSource, settings: Settings) -> None:
    """Whoever reads the file can act as a store, or as an operator."""
    secrets = settings.secrets
    if source.file is None or not (secrets.stores or secrets.operators):
        return
    if stat.S_IMODE(os.stat(source.file).st_mode) & (stat.S_IRGRP | stat.S_IROTH):
        _log.warning("others can read the secrets", file=source.file, remedy="chmod 600")


STOP_S_MAX: Final = 15.0


class RunningServer(Protocol):
    """A server that has started."""

    def problem(self) -> str:
        """Why it is of little use at the moment; empty where it is."""
        ...

    async def close(self) -> None: ...


class StartedServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server, and what to tell of it."""

    server: RunningServer
    line: str
    """Where it serves, for people."""
    addresses: tuple[str, ...]
    """For whoever waits for the ready file."""
    reload_certificates: Callable[[], None]


class ServerContext(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server starts."""

    environment: Environment
    settings: Settings
    metrics: Metrics
    stack: AsyncExitStack
    """Ends what the server needs, after the server."""


def run_server(
    name: str,
    source: ServerSource,
    settings: Settings,
    start: Callable[[ServerContext], Awaitable[StartedServer]],
    *,
    ready_file: str | None,
    metrics: Metrics | None = None,
) -> None:
    """Run one until SIGTERM or SIGINT; `ready_file` is written once it serves."""
    check_ready_file(ready_file)
    with real_environment() as environment:
        set_up_logs(settings.logs, clock=environment.clock)
        warn_of_open_secrets(source, settings)

        async def main() -> None:
            async with AsyncExitStack() as stack:
                place = ServerContext(
                    environment=environment,
                    settings=settings,
                    metrics=metrics or Metrics(),
                    stack=stack,
                )
                await _serve(name, place, start, ready_file)

        run(main())


async def _serve(
    name: str,
    place: ServerContext,
    start: Callable[[ServerContext], Awaitable[StartedServer]],
    ready_file: str | None,
) -> None:
    environment = place.environment
    stop = stop_on_signals(environment)
    servers: list[RunningServer] = []

    def problem() -> str:
        if stop.is_set():
            return "it is stopping"
        return servers[0].problem() if servers else "it waits for the cluster's stores"

    async def started() -> StartedServer:
        return await start(place)

    async with served_over_http(place.settings, place.metrics, {name: problem}):
        ready = await unless_stopped(stop, started())
        if ready is None:
            return
        servers.append(ready.server)
        freeze_start()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, ready.reload_certificates)
        write_line(ready.line)
        sys.stdout.flush()
        if ready_file is not None:
            write_ready_file(ready_file, *ready.addresses)
        await stop.wait()
        overdue = loop.call_later(
            STOP_S_MAX, environment.end_process, f"the {name} did not stop in {STOP_S_MAX:g} s"
        )
        await ready.server.close()
        overdue.cancel()
    get_logger(name).info("stopped")
