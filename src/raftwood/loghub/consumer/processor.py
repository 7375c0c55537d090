"""What users write: a processor for each shard, which receives batches and saves checkpoints.

    class Count(Processor):
        def process(self, batches, tracker):
            for batch in batches:
                self.store(batch.records())
            tracker.save_checkpoint()

`initialize` and `shutdown` may be left out. A processor is made when this worker gets a shard, and
serves that shard alone, one call at a time. `AsyncProcessor` runs on the event loop. `Processor`
may block: each call runs in a thread of `ProcessorThreads`, its own pool. Python waits for the
threads of `concurrent.futures` at the end of a process, and a thread that hangs in user code would
keep the process from ending.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeAlias

from raftwood.loghub.consumer.checkpoints import AsyncCheckpointTracker, CheckpointTracker
from raftwood.loghub.consumer.source import ShardBatch
from raftwood.loghub.errors import LeaseLost


class Processor(ABC):
    """For code that blocks; each call runs in a thread, one at a time."""

    def initialize(self, shard_id: str) -> None:  # noqa: B027
        """Called once, before all else, when this worker has the shard."""

    @abstractmethod
    def process(self, batches: Sequence[ShardBatch], tracker: CheckpointTracker) -> None:
        """Processes the next batches; must end within `tracker.remaining_s`.

        After that `tracker.save_checkpoint` and `tracker.check_lease` raise `LeaseLost`, and the
        call should end. Call `check_lease` before each step that cannot be undone: the process may
        have been paused since the last one.

        A call that neither ends nor saves a checkpoint for a lease timeout beyond that loses the
        shard to another worker: what it does later is done twice. If it raises, the shard begins
        again a little later, behind the last saved checkpoint.
        """

    def shutdown(self, tracker: CheckpointTracker) -> None:  # noqa: B027
        """Called once, after all else: the last chance to save a checkpoint.

        With `tracker.is_shard_end` nothing follows: returning means that the whole shard is
        processed.
        """


class AsyncProcessor(ABC):
    """Like `Processor`, for code that never blocks; runs on the event loop."""

    async def initialize(self, shard_id: str) -> None:  # noqa: B027
        """See `Processor.initialize`."""

    @abstractmethod
    async def process(self, batches: Sequence[ShardBatch], tracker: AsyncCheckpointTracker) -> None:
        """See `Processor.process`."""

    async def shutdown(self, tracker: AsyncCheckpointTracker) -> None:  # noqa: B027
        """See `Processor.shutdown`."""


def _check_goes_on(tracker: CheckpointTracker | AsyncCheckpointTracker) -> None:
    """A call that returned early at the end of a shard would count as all of the shard."""
    if tracker.is_stopping:
        raise LeaseLost(f"shard {tracker.shard_id} is given up: the next worker has the rest")


class BatchFunction(Processor):
    """Calls a function for each batch; a batch is dealt with when the function returns."""

    def __init__(self, function: Callable[[Any, CheckpointTracker], object]) -> None:
        self._function = function

    def process(self, batches: Sequence[ShardBatch], tracker: CheckpointTracker) -> None:
        for batch in batches:
            _check_goes_on(tracker)
            self._function(batch, tracker)
            tracker.save_checkpoint(after=batch)


class AsyncBatchFunction(AsyncProcessor):
    """As `BatchFunction`, on the event loop."""

    def __init__(
        self, function: Callable[[Any, AsyncCheckpointTracker], Awaitable[object]]
    ) -> None:
        self._function = function

    async def process(self, batches: Sequence[ShardBatch], tracker: AsyncCheckpointTracker) -> None:
        for batch in batches:
            _check_goes_on(tracker)
            await self._function(batch, tracker)
            await tracker.save_checkpoint(after=batch)


AnyProcessor: TypeAlias = Processor | AsyncProcessor
ProcessorFactory: TypeAlias = Callable[[], AnyProcessor]
"""Makes a processor; a processor class is one."""


_Calls: TypeAlias = "SimpleQueue[tuple[Callable[[], None], Future[None]] | None]"


class ProcessorThreads:
    """A bounded pool; a thread is started when a call finds no free one."""

    def __init__(self, threads_max: int) -> None:
        # Calls wait here and not for a thread; each checks its deadline after the wait.
        self._free = asyncio.Semaphore(threads_max)
        self._calls: _Calls = SimpleQueue()
        self._started = 0
        self._busy = 0

    def close(self) -> None:
        """Closes the pool. Calls under way end by themselves, or with the process."""
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
        del call, work, done  # so that nothing is held while it waits for the next call


class _InThreads(AsyncProcessor):
    """Adapts a blocking processor to the event loop."""

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
