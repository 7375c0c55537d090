"""`raftwood kv capture` and `replay`: a table's changes into a logstore, and back into a table."""

import asyncio
import os
import platform
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter
from msgspec.structs import replace

from raftwood.base.environment import Environment
from raftwood.base.logs import set_up_logs
from raftwood.base.metrics import Metrics
from raftwood.base.names import checked_name
from raftwood.base.text import MILLISECONDS
from raftwood.capture.capture import Capture, CaptureSettings
from raftwood.capture.replay import TableReplay
from raftwood.cli.kv import KvUser
from raftwood.cli.lease_target import LEASES, LeaseTarget, lease_store
from raftwood.cli.loghub_target import HubTarget, Stream, stream_of
from raftwood.cli.options import DEFAULTS, Source, quantity_of
from raftwood.cli.output import write_line
from raftwood.cli.process import served_over_http, stop_on_signals, write_ready_file
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.consumer.leases import LeaseTimes
from raftwood.loghub.consumer.loghub_source import LogHubSource
from raftwood.loghub.consumer.worker import Worker, WorkerConfig
from raftwood.server.event_loop import run


@Parameter(name="*")
@dataclass(frozen=True)
class CaptureTarget:
    """Which nodes and which gateways, and as whom."""

    addresses: Annotated[
        str | None,
        Parameter(help="Some nodes, HOST:PORT[,HOST:PORT]; else zeppelin_client.addresses."),
    ] = None
    user: Annotated[
        str | None,
        Parameter(
            help="A user of the table; else zeppelin_client.user. The password is "
            "zeppelin_client.password, in the file or as RAFTWOOD_ZEPPELIN_CLIENT__PASSWORD."
        ),
    ] = None
    gateways: Annotated[
        str | None,
        Parameter(help="Some gateways, HOST:PORT[,HOST:PORT]; else loghub_client.gateways."),
    ] = None
    access_key: Annotated[
        str | None,
        Parameter(
            help="The id of an access key; else loghub_client.access_key. The secret is "
            "loghub_client.access_secret, in the file or as RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET."
        ),
    ] = None
    http: Annotated[
        str, Parameter(help="Serve health and metrics at this HOST:PORT, as a store does.")
    ] = ""
    ready_file: Annotated[
        str | None, Parameter(help="Written once it captures: its process number.")
    ] = None
    source: Source = DEFAULTS

    @property
    def kv(self) -> KvUser:
        return KvUser(addresses=self.addresses, user=self.user, source=self.source)

    @property
    def hub(self) -> HubTarget:
        return HubTarget(gateways=self.gateways, access_key=self.access_key, source=self.source)


CAPTURE_TARGET = CaptureTarget()


def capture(
    stream: Stream,
    *,
    name: Annotated[
        str,
        Parameter(
            help="What it is known by: a process that is started anew under it goes on where the "
            "one before ended, which cannot go on then."
        ),
    ] = "default",
    target: CaptureTarget = CAPTURE_TARGET,
) -> int:
    """Put a table's changes into a logstore, each once, until SIGTERM or SIGINT.

    What the table has is put there first. The changes of a partition are in one shard, in order.
    """
    project, logstore = stream_of(stream)
    settings = CaptureSettings(name=name, project=project, logstore=logstore)

    async def main() -> int:
        return await _run(environment, settings, target)

    with real_environment() as environment:
        set_up_logs(target.source.load().settings.logs, clock=environment.clock)
        return run(main())


async def _run(environment: Environment, settings: CaptureSettings, target: CaptureTarget) -> int:
    loaded = target.source.load().settings
    # The file's own address is that of a store or gateway beside this process.
    served = replace(loaded, http=replace(loaded.http, listen=target.http))
    stop = stop_on_signals(environment)
    metrics = Metrics(capture=settings.name)
    async with AsyncExitStack() as stack:
        polling = await stack.enter_async_context(await target.kv.connect(environment))
        asking = await stack.enter_async_context(await target.kv.connect(environment))
        hub = await stack.enter_async_context(await target.hub.connect(environment))
        capturing = await Capture.start(
            environment, settings, polling=polling, asking=asking, hub=hub
        )
        capturing.show(metrics)
        async with served_over_http(served, metrics, {"capture": capturing.problem}):
            write_line(f"changes of {capturing.table} go to {settings.project}/{settings.logstore}")
            if target.ready_file is not None:
                write_ready_file(target.ready_file)
            running = asyncio.create_task(capturing.run())
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in (running, stopping):
                task.cancel()
            await asyncio.wait([running, stopping])
            if not running.cancelled():
                running.result()
    return 0


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
    target: CaptureTarget = CAPTURE_TARGET,
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
            lambda: TableReplay(environment, kv, group=group),
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
