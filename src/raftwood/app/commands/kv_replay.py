"""`raftwood kv replay`: a stream of captured changes into a table, until it is told to stop."""

import asyncio
import os
import platform
from contextlib import AsyncExitStack
from typing import Annotated

from cyclopts import Parameter
from msgspec.structs import replace

from raftwood.app.commands.hub_target import Stream, stream_of
from raftwood.app.commands.kv_capture import TARGET, CaptureTarget
from raftwood.app.commands.lease_target import LEASES, LeaseTarget, lease_store
from raftwood.app.commands.quantities import quantity_of
from raftwood.app.event_loop import run
from raftwood.app.process import served_over_http, stop_on_signals, write_ready_file
from raftwood.base.environment import Environment
from raftwood.base.logs import set_up_logs
from raftwood.base.metrics import Metrics
from raftwood.base.names import checked_name
from raftwood.base.quantities import MILLISECONDS
from raftwood.capture.replay import Replay
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.consumer.leases import LeaseTimes
from raftwood.loghub.consumer.sources.loghub import LogHubSource
from raftwood.loghub.consumer.worker import Worker, WorkerConfig


def replay(
    stream: Stream,
    *,
    group: Annotated[
        str, Parameter(help="Whose processes share the shards; one for each table.")
    ] = "replay",
    name: Annotated[
        str | None,
        Parameter(help="This process's name in the group; else one that is used once."),
    ] = None,
    timeout: Annotated[
        str,
        Parameter(
            help="A process that is silent for so long loses its shards to the others; the same "
            "for all of a group."
        ),
    ] = "10s",
    leases: LeaseTarget = LEASES,
    target: CaptureTarget = TARGET,
) -> int:
    """Apply captured changes to the table of a user, together with the group's other processes.

    The table is equal to the captured one in the end; nobody else should write to it.
    """
    project, logstore = stream_of(stream)
    config = WorkerConfig(
        instance=name or f"{platform.node()[:40]}-{os.getpid()}",
        times=LeaseTimes(timeout_ms=quantity_of("--timeout", timeout, MILLISECONDS)),
    )

    async def work(stack: AsyncExitStack, environment: Environment) -> None:
        kv = await stack.enter_async_context(await target.kv.connect(environment))
        hub = await stack.enter_async_context(await target.hub.connect(environment))
        store = await stack.enter_async_context(
            lease_store(environment, leases, target.source, stream=stream, group=group)
        )
        metrics = Metrics(worker=config.instance)
        worker = Worker(
            config,
            lambda: Replay(environment, kv, group=group),
            store,
            source=LogHubSource(hub, project=project, logstore=logstore),
            environment=environment,
            metrics=metrics,
        )
        loaded = target.source.load().settings
        served = replace(loaded, http=replace(loaded.http, listen=target.http))
        await stack.enter_async_context(served_over_http(served, metrics, {}))
        if target.ready_file is not None:
            write_ready_file(target.ready_file)
        stopping = asyncio.create_task(_drain_on(stop_on_signals(environment), worker))
        try:
            await worker.run()
        finally:
            stopping.cancel()

    async def main() -> int:
        async with AsyncExitStack() as stack:
            await work(stack, environment)
        return 0

    checked_name("group", group)
    with real_environment() as environment:
        set_up_logs(target.source.load().settings.logs, clock=environment.clock)
        return run(main())


async def _drain_on(stop: asyncio.Event, worker: Worker) -> None:
    await stop.wait()
    worker.drain()
