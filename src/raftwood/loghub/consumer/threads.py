"""Processors that block, made to look as if they did not: each call runs in a thread of a pool."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from raftwood.loghub.consumer.errors import LeaseLost
from raftwood.loghub.consumer.processor import AnyProcessor, AsyncProcessor, Processor
from raftwood.loghub.consumer.source import ShardBatch
from raftwood.loghub.consumer.trackers import AsyncCheckpointTracker, CheckpointTracker


class ProcessorThreads:
    """A bounded pool, made when the first processor needs it."""

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max
        self._executor: ThreadPoolExecutor | None = None
        # Whoever waits, waits here and not in the pool, and looks at its deadline behind it.
        self._free = asyncio.Semaphore(threads_max)

    def close(self) -> None:
        """Calls that are still under way end by themselves."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    def adapted(self, processor: AnyProcessor) -> AsyncProcessor:
        if isinstance(processor, AsyncProcessor):
            return processor
        return _InThreads(processor, self)

    async def call(self, work: Callable[[], None], *, is_late: Callable[[], bool]) -> None:
        async with self._free:
            if is_late():
                raise LeaseLost("the lease's time was over before a thread was free for its shard")
            if self._executor is None:
                self._executor = ThreadPoolExecutor(
                    self._threads_max, thread_name_prefix="raftwood-processor"
                )
            await asyncio.get_running_loop().run_in_executor(self._executor, work)


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
        await self._threads.call(
            lambda: self._processor.process(batches, blocking),
            is_late=lambda: tracker.remaining_s <= 0,
        )

    async def shutdown(self, tracker: AsyncCheckpointTracker) -> None:
        blocking = CheckpointTracker(tracker, asyncio.get_running_loop())
        await self._threads.call(lambda: self._processor.shutdown(blocking), is_late=lambda: False)
