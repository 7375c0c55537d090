"""Processors that block, made to look as if they did not: each call runs in a thread of a pool.

The threads are the pool's own: those of `concurrent.futures` are waited for as a process ends, and
one that hangs in what a user wrote would keep it from ending.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeAlias

from raftwood.loghub.consumer.errors import LeaseLost
from raftwood.loghub.consumer.processor import AnyProcessor, AsyncProcessor, Processor
from raftwood.loghub.consumer.source import ShardBatch
from raftwood.loghub.consumer.trackers import AsyncCheckpointTracker, CheckpointTracker

_Calls: TypeAlias = "SimpleQueue[tuple[Callable[[], None], Future[None]] | None]"


class ProcessorThreads:
    """A bounded pool; a thread is started when a call finds none that is free."""

    def __init__(self, threads_max: int) -> None:
        # Whoever waits, waits here and not for a thread, and looks at its deadline behind it.
        self._free = asyncio.Semaphore(threads_max)
        self._calls: _Calls = SimpleQueue()
        self._started = 0
        self._busy = 0

    def close(self) -> None:
        """Calls that are still under way end by themselves, or with the process."""
        for _ in range(self._started):
            self._calls.put(None)

    def adapted(self, processor: AnyProcessor) -> AsyncProcessor:
        if isinstance(processor, AsyncProcessor):
            return processor
        return _InThreads(processor, self)

    async def call(self, work: Callable[[], None], *, is_late: Callable[[], bool]) -> None:
        async with self._free:
            if is_late():
                raise LeaseLost("the lease's time was over before a thread was free for its shard")
            self._busy += 1
            try:
                if self._busy > self._started:
                    self._start()
                done: Future[None] = Future()
                self._calls.put((work, done))
                await asyncio.wrap_future(done)
            finally:
                self._busy -= 1

    def _start(self) -> None:
        self._started += 1
        name = f"raftwood-processor-{self._started}"
        threading.Thread(target=_serve, args=(self._calls,), name=name, daemon=True).start()


def _serve(calls: _Calls) -> None:
    while (call := calls.get()) is not None:
        work, done = call
        if not done.set_running_or_notify_cancel():
            continue
        try:
            work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        del call, work, done  # nothing is kept while it waits for the next one


class _InThreads(AsyncProcessor):
    """A blocking processor."""

    def __init__(self, processor: Processor, threads: ProcessorThreads) -> None:
        self._processor = processor
        self._threads = threads

    async def initialize(self, shard_id: str) -> None:
        await self._threads.call(
            lambda: self._processor.initialize(shard_id), is_late=lambda: False
        )

    async def process(self, batches: Sequence[ShardBatch], tracker: AsyncCheckpointTracker) -> None:
        blocking = CheckpointTracker(tracker, asyncio.get_running_loop())

        def work() -> None:
            # The process may have been paused since the loop handed the call to this thread.
            blocking.check_lease()
            self._processor.process(batches, blocking)

        await self._threads.call(work, is_late=lambda: tracker.remaining_s <= 0)

    async def shutdown(self, tracker: AsyncCheckpointTracker) -> None:
        blocking = CheckpointTracker(tracker, asyncio.get_running_loop())
        await self._threads.call(lambda: self._processor.shutdown(blocking), is_late=lambda: False)
