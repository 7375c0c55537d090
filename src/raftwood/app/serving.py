"""A server of a cluster as a process: it waits for the stores, serves, and ends in order."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final, Protocol

import msgspec

from raftwood.app.commands.source import Source
from raftwood.app.event_loop import run
from raftwood.app.output import write_line
from raftwood.app.process import (
    freeze_start,
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


class Serving(Protocol):
    """A server that has started."""

    def problem(self) -> str:
        """Why it is of little use at the moment; empty where it is."""
        ...

    async def close(self) -> None: ...


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """A server, and what to tell of it."""

    server: Serving
    line: str
    """Where it serves, for people."""
    addresses: tuple[str, ...]
    """For whoever waits for the ready file."""
    reload_certificates: Callable[[], None]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server starts."""

    environment: Environment
    settings: Settings
    metrics: Metrics
    stack: AsyncExitStack
    """Ends what the server needs, after the server."""


def run_server(
    name: str,
    source: Source,
    settings: Settings,
    start: Callable[[Place], Awaitable[Started]],
    *,
    ready_file: str | None,
    metrics: Metrics | None = None,
) -> None:
    """Run one until SIGTERM or SIGINT; `ready_file` is written once it serves."""
    with real_environment() as environment:
        set_up_logs(settings.logs, clock=environment.clock)
        warn_of_open_secrets(source, settings)

        async def main() -> None:
            async with AsyncExitStack() as stack:
                place = Place(
                    environment=environment,
                    settings=settings,
                    metrics=metrics or Metrics(),
                    stack=stack,
                )
                await _serve(name, place, start, ready_file)

        run(main())


async def _serve(
    name: str,
    place: Place,
    start: Callable[[Place], Awaitable[Started]],
    ready_file: str | None,
) -> None:
    environment = place.environment
    stop = stop_on_signals(environment)
    servers: list[Serving] = []

    def problem() -> str:
        if stop.is_set():
            return "it is stopping"
        return servers[0].problem() if servers else "it waits for the cluster's stores"

    async def started() -> Started:
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
