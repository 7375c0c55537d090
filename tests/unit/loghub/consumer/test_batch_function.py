"""Functions as processors, and what is left undone at the end of a shard."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from raftwood.base.environment import SystemClock
from raftwood.loghub.consumer.checkpoints import (
    AsyncCheckpointTracker,
    CheckpointTracker,
    CheckpointWriter,
)
from raftwood.loghub.consumer.leases import SHARD_END
from raftwood.loghub.consumer.processor import (
    AnyProcessor,
    AsyncBatchFunction,
    AsyncProcessor,
    BatchFunction,
    ProcessorThreads,
)
from raftwood.loghub.consumer.shard_consumer import ShardConsumer
from raftwood.loghub.consumer.source import ShardBatch
from raftwood.loghub.consumer.worker_metrics import ShardMeter, Totals
from tests.kits.loghub.workers import FakeBatch, FakeSource
from tests.kits.running import run
from tests.unit.loghub.consumer.test_shard_consumer import ME, Granted, held

Stop = Callable[[], None]


def checkpoint_after(make: Callable[[Stop], AnyProcessor]) -> tuple[str | None, bool]:
    """Where a shard of three batches, that has ended, is left; and whether its processor failed."""

    async def main() -> tuple[str | None, bool]:
        store, lease = await held()
        source = FakeSource(1, length=3)
        source.shards["0"].is_sealed = True
        tracker = AsyncCheckpointTracker(
            lease, Granted(), CheckpointWriter(store, ME.process, lambda _: None)
        )
        loop, threads = asyncio.get_running_loop(), ProcessorThreads(1)

        def stop() -> None:
            loop.call_soon_threadsafe(tracker.stopping.set)

        consumer = ShardConsumer(
            replace(lease, checkpoint="0"),
            lambda: make(stop),
            threads,
            source,
            tracker,
            Granted(),
            ShardMeter(SystemClock(), Totals()),
            random.Random(1),
            start="begin",
        )
        try:
            async with asyncio.timeout(60):
                await consumer.run()
        finally:
            threads.close()
        return tracker.checkpoint, consumer.has_failed

    return run(main())


def blocking(at: int, stop: Stop, seen: list[int]) -> BatchFunction:
    def process(batch: FakeBatch, tracker: CheckpointTracker) -> None:
        seen.append(batch.position)
        if batch.position == at:
            stop()
            while not tracker.is_stopping:
                time.sleep(0.001)

    return BatchFunction(process)


def waiting(at: int, stop: Stop, seen: list[int]) -> AsyncBatchFunction:
    async def process(batch: FakeBatch, tracker: AsyncCheckpointTracker) -> None:
        seen.append(batch.position)
        if batch.position == at:
            stop()
            await tracker.stopping.wait()

    return AsyncBatchFunction(process)


@pytest.mark.parametrize("kind", [blocking, waiting])
@pytest.mark.parametrize(("at", "end"), [(-1, SHARD_END), (0, "1"), (1, "2")])
def test_what_follows_a_stop_is_left_to_the_next_worker(
    kind: Callable[[int, Stop, list[int]], AnyProcessor], at: int, end: str
) -> None:
    seen: list[int] = []
    assert checkpoint_after(lambda stop: kind(at, stop, seen)) == (end, False)
    assert seen == list(range(3 if at < 0 else at + 1))


def test_a_batch_that_failed_is_not_dealt_with() -> None:
    def process(batch: FakeBatch, _: CheckpointTracker) -> None:
        if batch.position == 1:
            raise RuntimeError("planted")

    assert checkpoint_after(lambda _: BatchFunction(process)) == ("1", True)


class LeavesEarly(AsyncProcessor):
    """Ends its call as soon as it is asked to stop, as it may."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop

    async def process(self, batches: Sequence[ShardBatch], tracker: AsyncCheckpointTracker) -> None:
        await tracker.save_checkpoint(after=batches[0])
        self._stop()
        await tracker.stopping.wait()


def test_a_call_that_ends_early_is_not_the_end_of_a_shard() -> None:
    assert checkpoint_after(LeavesEarly) == ("1", False)
