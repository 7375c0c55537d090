"""`raftwood consume`: one worker of a group that shares a logstore's shards by leases."""

import asyncio
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal, cast

import msgspec
from cyclopts import App, Parameter
from msgspec.structs import replace

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidConfiguration, InvalidInput, Unavailable
from raftwood.base.logs import set_up_logs
from raftwood.base.metrics import Metrics
from raftwood.base.text import MILLISECONDS
from raftwood.cli.lease_target import LEASES, LeaseTarget, lease_store
from raftwood.cli.loghub_target import HUB, HubTarget, Stream, stream_of
from raftwood.cli.options import quantity_of
from raftwood.cli.process import served_over_http, stop_on_signals
from raftwood.cli.tail import Printer, plain_of
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.client.pulled_batches import LogRecord
from raftwood.loghub.consumer.checkpoints import AsyncCheckpointTracker, CheckpointTracker
from raftwood.loghub.consumer.loghub_source import LogHubSource, LogHubSourceSettings
from raftwood.loghub.consumer.processor import AsyncProcessor, Processor, ProcessorFactory
from raftwood.loghub.consumer.source import ShardBatch
from raftwood.loghub.consumer.worker import Worker
from raftwood.server.clients import worker_config

COMMAND_S_MAX: Final = 3_600.0


class Printing(AsyncProcessor):
    """Each record is printed."""

    def __init__(self, write: Callable[[list[LogRecord]], None]) -> None:
        self._write = write

    async def process(self, batches: Sequence[ShardBatch], tracker: AsyncCheckpointTracker) -> None:
        for batch in batches:
            self._write(cast("list[LogRecord]", batch.records()))
        await tracker.save_checkpoint()


class Running(Processor):
    """A command is run for what comes at once: JSON lines on its standard input.

    It finds the shard and the epoch in RAFTWOOD_SHARD and RAFTWOOD_EPOCH. What it was given counts
    as dealt with when it ends well; else it is given again.
    """

    def __init__(self, command: str) -> None:
        self._command = command

    def process(self, batches: Sequence[ShardBatch], tracker: CheckpointTracker) -> None:
        encoder = msgspec.json.Encoder()
        lines = bytearray()
        for batch in batches:
            for record in cast("list[LogRecord]", batch.records()):
                lines += encoder.encode(plain_of(record)) + b"\n"
        environment = {
            "RAFTWOOD_SHARD": tracker.shard_id,
            "RAFTWOOD_EPOCH": str(tracker.epoch),
        }
        done = subprocess.run(  # noqa: S603 - what the user asked for
            ("/bin/sh", "-c", self._command),
            input=lines,
            env=os.environ | environment,
            timeout=COMMAND_S_MAX,
            check=False,
        )
        if done.returncode:
            raise Unavailable(f"{self._command!r} ended with status {done.returncode}")
        tracker.save_checkpoint(persistent=True)


def factory_of(place: str) -> ProcessorFactory:
    """The class that MODULE:CLASS names; modules of the current folder are found."""
    module_name, colon, name = place.partition(":")
    if not (module_name and colon and name):
        raise InvalidInput(f"{place[:100]!r} names no class: write MODULE:CLASS")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise InvalidConfiguration(f"{place!r} is not to be found: {error}") from error
    if not callable(found):
        raise InvalidConfiguration(f"{place!r} makes no processor: name a class or a function")
    return cast("ProcessorFactory", found)


app = App(name="consume", help_format="plaintext")


@app.default
def consume(
    stream: Stream,
    *,
    group: Annotated[str, Parameter(help="Whose workers share the shards.")],
    name: Annotated[
        str | None,
        Parameter(
            help="This worker's name in the group; a process that starts anew under it gets its "
            "shards back. Else one that is used once."
        ),
    ] = None,
    run: Annotated[
        str | None,
        Parameter(
            help="Run this shell command for what comes at once, as JSON lines on its standard "
            "input; where it fails, it is given them again."
        ),
    ] = None,
    processor: Annotated[
        str | None,
        Parameter(help="Use this class of processors, MODULE:CLASS."),
    ] = None,
    begin: Annotated[
        Literal["begin", "end"],
        Parameter(name="--from", help="Where shards are begun that the group has not read yet."),
    ] = "begin",
    timeout: Annotated[
        str,
        Parameter(
            help="A worker that is silent for so long loses its shards to the others; the same for "
            "all of a group."
        ),
    ] = "10s",
    balance: Annotated[
        Literal["count", "bytes"],
        Parameter(help="Share the shards by their number, or by their recent bytes."),
    ] = "count",
    skip_freed: Annotated[
        bool,
        Parameter(
            negative="", help="Go on where records were freed before the group has read them."
        ),
    ] = False,
    http: Annotated[
        str, Parameter(help="Serve health and metrics at this HOST:PORT, as a store does.")
    ] = "",
    leases: LeaseTarget = LEASES,
    hub: HubTarget = HUB,
) -> int:
    """Process the records of a logstore, together with the group's other workers.

    Shards move as workers come and go; each goes on where the one before has stopped. SIGTERM and
    Ctrl-C hand all over first.
    """
    project, logstore = stream_of(stream)
    factory = _factory(run, processor, Printer([], hub.output))
    timeout_ms = quantity_of("--timeout", timeout, MILLISECONDS)
    config = worker_config(
        name,
        start=begin,
        timeout_ms=timeout_ms,
        balance=balance,
    )

    async def work(environment: Environment, client: AsyncLogHubClient) -> int:
        settings = hub.source.load().settings
        set_up_logs(settings.logs, clock=environment.clock)
        # The file's own address is that of a store or gateway beside this worker.
        served = replace(settings, http=replace(settings.http, listen=http))
        metrics = Metrics(worker=config.instance)
        source = LogHubSource(
            client,
            project=project,
            logstore=logstore,
            settings=LogHubSourceSettings(skips_freed=skip_freed),
        )
        async with lease_store(
            environment, leases, hub.source, stream=stream, group=group
        ) as store:
            worker = Worker(
                config, factory, store, source=source, environment=environment, metrics=metrics
            )
            stop = stop_on_signals(environment)
            stopping = asyncio.create_task(_drain_on(stop, worker))
            try:
                async with served_over_http(served, metrics, {}):
                    await worker.run()
            finally:
                stopping.cancel()
        return 0

    return hub.run_in(work)


async def _drain_on(stop: asyncio.Event, worker: Worker) -> None:
    await stop.wait()
    worker.drain()


def _factory(run: str | None, processor: str | None, printer: Printer) -> ProcessorFactory:
    if run is not None and processor is not None:
        raise InvalidInput("give --run or --processor, not both")
    if run is not None:
        return lambda: Running(run)
    if processor is not None:
        return factory_of(processor)
    return lambda: Printing(printer.write)
