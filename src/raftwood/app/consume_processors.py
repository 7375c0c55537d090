"""What `raftwood consume` does with batches: print them, run a command, or use a Python object."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final, cast

import msgspec

from raftwood.app.stream_records import plain_of
from raftwood.base.errors import InvalidConfiguration, InvalidInput, Unavailable
from raftwood.loghub.client.pulled_batches import LogRecord
from raftwood.loghub.consumer.processor import AsyncProcessor, Processor, ProcessorFactory
from raftwood.loghub.consumer.source import ShardBatch
from raftwood.loghub.consumer.trackers import AsyncCheckpointTracker, CheckpointTracker

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
