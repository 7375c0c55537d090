"""A log on a disk in memory and in virtual time: for full disks, closing, waiting for ever."""

import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn

from raftwood.base.environment import Environment, SystemClock
from raftwood.base.files import Completion, Files, Operation
from raftwood.disk.segment_log import LogSettings, SegmentLog
from raftwood.testing import ImageRunner, ImmediateFiles

SMALL = LogSettings(segment_bytes=16 << 10, cache_bytes_max=0, full_retry_ms=10)
FOLDER = "/data/log"


class Ended(AssertionError):
    """The process ended itself."""


def environment_over(files: Files) -> Environment:
    def end_process(reason: str) -> NoReturn:
        raise Ended(reason)

    return Environment(
        clock=SystemClock(), random=random.Random(1), files=files, end_process=end_process
    )


async def open_log(files: Files, settings: LogSettings = SMALL) -> SegmentLog:
    return await SegmentLog.open(environment_over(files), FOLDER, settings)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """To the end, in virtual time: waiting for what never comes is a Deadlock or an Overrun."""
    with ImageRunner() as runner:
        runner.run(coroutine)


class WatchedFiles(ImmediateFiles):
    """Shows each operation to a function that may raise in its place."""

    def __init__(self, watch: Callable[[Operation], None]) -> None:
        super().__init__()
        self.watch = watch
        self.submitted = 0

    def submit(
        self, operations: Sequence[Operation], callback: Callable[[Completion], None]
    ) -> None:
        self.submitted += 1
        super().submit(operations, callback)

    def _apply(self, operation: Operation) -> Any:
        self.watch(operation)
        return super()._apply(operation)
