"""`raftwood serve` and `logservice`: one store as a process, until it is told to stop."""

import asyncio
import signal
import sys
from collections.abc import Mapping
from typing import Annotated

from cyclopts import App, Parameter

from raftwood.base.environment import Environment
from raftwood.base.logs import bind_context, get_logger, set_up_logs
from raftwood.base.metrics import Metrics
from raftwood.cli.options import SERVER_DEFAULTS, ServerSource
from raftwood.cli.output import write_line
from raftwood.cli.process import (
    check_ready_file,
    freeze_start,
    served_over_http,
    stop_on_signals,
    warn_of_open_secrets,
    write_ready_file,
)
from raftwood.disk.real_environment import real_environment
from raftwood.server.event_loop import run
from raftwood.server.http_server import Check
from raftwood.server.settings import Settings
from raftwood.server.store import MakeTenant, StoreServer, serve
from raftwood.server.tenants import MetastoreTenant, log_settings, log_tenant

_log = get_logger("store")


def run_store(
    source: ServerSource,
    settings: Settings,
    make_tenant: MakeTenant,
    *,
    joins: bool,
    ready_file: str | None = None,
) -> None:
    """Run one store until SIGTERM or SIGINT; `ready_file` is written once it serves."""
    check_ready_file(ready_file)
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


app = App(name="serve", help_format="plaintext")


@app.default
def main(
    *,
    join: Annotated[
        bool,
        Parameter(negative="", help="This store is no first member: others add it to the cluster."),
    ] = False,
    source: ServerSource = SERVER_DEFAULTS,
) -> None:
    """Run one store until SIGTERM or SIGINT; then it hands over what it leads, and ends.

    A second signal ends it at once. SIGHUP makes it read its TLS files again.
    """
    run_store(source, source.load().settings, MetastoreTenant, joins=join)


logservice_app = App(name="logservice", help_format="plaintext")


@logservice_app.command
def start(
    *,
    join: Annotated[
        bool,
        Parameter(negative="", help="This store is no first member: it joins a running cluster."),
    ] = False,
    ready_file: Annotated[
        str | None,
        Parameter(help="Written once the store serves: its address and process number."),
    ] = None,
    source: ServerSource = SERVER_DEFAULTS,
) -> None:
    """Run one store until SIGTERM or SIGINT; then it hands over what it leads, and ends.

    The stores that cluster.members names set the cluster up together, in any order of their starts.
    A second signal ends it at once. SIGHUP makes it read its TLS files again.
    """
    settings = log_settings(source.load().settings)
    run_store(source, settings, log_tenant, joins=join, ready_file=ready_file)
