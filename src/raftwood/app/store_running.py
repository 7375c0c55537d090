"""A store as a process, until it is told to stop."""

import asyncio
import signal
import sys
from collections.abc import Mapping

from raftwood.app.commands.source import Source
from raftwood.app.event_loop import run
from raftwood.app.http_server import Check
from raftwood.app.output import write_line
from raftwood.app.process import (
    freeze_start,
    served_over_http,
    stop_on_signals,
    warn_of_open_secrets,
    write_ready_file,
)
from raftwood.app.settings import Settings
from raftwood.app.store_server import StoreServer, serve
from raftwood.app.tenant import MakeTenant
from raftwood.base.environment import Environment
from raftwood.base.logs import bind_context, get_logger, set_up_logs
from raftwood.base.metrics import Metrics
from raftwood.disk.real_environment import real_environment

_log = get_logger("store")


def run_store(
    source: Source,
    settings: Settings,
    make_tenant: MakeTenant,
    *,
    joins: bool,
    ready_file: str | None = None,
) -> None:
    """Run one store until SIGTERM or SIGINT; `ready_file` is written once it serves."""
    with real_environment() as environment:
        set_up_logs(settings.logs, clock=environment.clock)
        warn_of_open_secrets(source, settings)
        run(_serve(environment, settings, make_tenant, joins=joins, ready_file=ready_file))


async def _serve(
    environment: Environment,
    settings: Settings,
    make_tenant: MakeTenant,
    *,
    joins: bool,
    ready_file: str | None,
) -> None:
    bind_context(store=settings.node.store_id)
    stop = stop_on_signals(environment)
    metrics = Metrics(store=str(settings.node.store_id))
    readiness = Readiness(stop)

    def ready(server: StoreServer) -> None:
        readiness.server = server
        freeze_start()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, server.reload_certificates)
        write_line(
            f"store {server.host.id} of cluster {settings.cluster.name} serves on {server.address}"
        )
        sys.stdout.flush()
        if ready_file is not None:
            write_ready_file(ready_file, server.address)

    # From before the store is opened, which may take long, until it is closed.
    async with served_over_http(settings, metrics, readiness.checks()):
        await serve(
            environment,
            settings,
            make_tenant,
            joins=joins,
            metrics=metrics,
            stop=stop,
            on_ready=ready,
        )
    _log.info("stopped")


class Readiness:
    """What `/readyz` asks: whether the store serves, and whether its tenant does."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self.server: StoreServer | None = None

    def checks(self) -> Mapping[str, Check]:
        return {"store": self._store, "service": self._tenant}

    def _store(self) -> str:
        if self._stop.is_set():
            return "it is stopping"
        return "" if self.server is not None else "it is being opened"

    def _tenant(self) -> str:
        # Before it is open and while it stops, the store's own line says it all.
        if self.server is None or self._stop.is_set():
            return ""
        problems = self.server.tenant.problems()
        return "; ".join(f"{part}: {reason}" for part, reason in problems.items() if reason)
