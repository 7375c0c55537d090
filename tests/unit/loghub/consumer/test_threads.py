"""Processors that block run in threads, with the same promises."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import pytest

from raftwood.base.environment import Environment
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.consumer.checkpoints import (
    AsyncCheckpointTracker,
    CheckpointTracker,
    CheckpointWriter,
    LeaseTenure,
)
from raftwood.loghub.consumer.leases import LeaseOwner, LeaseTimes, NewLease, Take
from raftwood.loghub.consumer.memory_store import MemoryLeaseStore
from raftwood.loghub.consumer.processor import Processor, ProcessorThreads
from raftwood.loghub.consumer.source import ShardBatch
from raftwood.loghub.consumer.worker import Worker, WorkerConfig
from raftwood.loghub.errors import LeaseLost
from tests.kits.loghub.workers import FakeBatch, FakeSource
from tests.kits.running import run


class Blocking(Processor):
    busy = 0
    busiest = 0
    seen: list[str]
    ended: list[str]
    stop: threading.Event

    def process(self, batches: Sequence[ShardBatch], tracker: CheckpointTracker) -> None:
        cls = type(self)
        cls.busy += 1
        cls.busiest = max(cls.busiest, cls.busy)
        time.sleep(0.01)
        assert tracker.remaining_s > 0
        assert tracker.epoch == 1
        for batch in batches:
            cls.seen += batch.records()
        tracker.save_checkpoint(persistent=True)
        cls.busy -= 1

    def shutdown(self, tracker: CheckpointTracker) -> None:
        self.ended.append(tracker.shard_id)
        assert tracker.is_stopping
        assert not tracker.is_shard_end
        tracker.save_checkpoint()


def test_blocking_processors_run_side_by_side_in_a_bounded_pool() -> None:
    Blocking.seen, Blocking.ended = [], []
    store, source = MemoryLeaseStore(), FakeSource(6, length=20)

    async def main(environment: Environment) -> None:
        import asyncio

        config = WorkerConfig(
            instance="a", times=LeaseTimes(timeout_ms=6_000, poll_ms=20), threads_max=2
        )
        worker = Worker(config, Blocking, store, source=source, environment=environment)
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(60):
            while len(Blocking.seen) < 120:  # noqa: ASYNC110 - threads fill it
                await asyncio.sleep(0.02)
        assert {lease.checkpoint for lease in store.leases.values()} <= {"20"}
        worker.drain()
        await running

    with real_environment() as environment:
        run(main(environment))
    assert sorted(Blocking.seen) == sorted(source.everything())
    assert sorted(Blocking.ended) == sorted(source.shards)
    assert Blocking.busiest == 2


HANGS = """
import asyncio, threading
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.consumer.leases import LeaseTimes
from raftwood.loghub.consumer.processor import Processor
from raftwood.loghub.consumer.memory_store import MemoryLeaseStore
from raftwood.loghub.consumer.worker import Worker, WorkerConfig
from tests.kits.loghub.workers import FakeSource

hangs = threading.Event()

class Hanging(Processor):
    def process(self, batches, tracker):
        hangs.set()
        threading.Event().wait()

async def main(environment):
    worker = Worker(
        WorkerConfig(instance="a", times=LeaseTimes(timeout_ms=200)),
        Hanging,
        MemoryLeaseStore(),
        source=FakeSource(1, length=4),
        environment=environment,
    )
    running = asyncio.create_task(worker.run())
    while not hangs.is_set():
        await asyncio.sleep(0.01)
    worker.drain()
    await running

with real_environment() as environment:
    asyncio.run(main(environment))
"""


def test_a_call_that_hangs_does_not_keep_the_process_from_ending() -> None:
    done = subprocess.run(
        (sys.executable, "-c", HANGS),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 1
    assert "could not hand its shards over" in done.stderr


def test_errors_of_blocking_processors_come_back() -> None:
    def fail() -> None:
        raise ValueError("planted")

    async def body() -> None:
        threads = ProcessorThreads(1)
        try:
            for _ in range(3):
                with pytest.raises(ValueError, match="planted"):
                    await threads.call(fail, is_late=lambda: False)
            with pytest.raises(LeaseLost):
                await threads.call(fail, is_late=lambda: True)
        finally:
            threads.close()

    run(body())


class Late(Processor):
    def process(self, batches: Sequence[ShardBatch], tracker: CheckpointTracker) -> None:
        raise AssertionError(f"{tracker.shard_id} is given {len(batches)} when its time is over")


def test_a_thread_that_comes_to_its_call_too_late_does_not_make_it() -> None:
    """As after a pause between the loop's look at the clock and the thread's turn."""

    async def body() -> None:
        store = MemoryLeaseStore()
        await store.create([NewLease("0")])
        (lease,) = await store.take(LeaseOwner("a", "p1"), [Take("0", 0, sets_consumer=True)])
        writer = CheckpointWriter(store, "p1", lambda _: None)
        tracker = AsyncCheckpointTracker(lease, Ending(), writer)
        threads = ProcessorThreads(1)
        try:
            with pytest.raises(LeaseLost, match="not renewed in time"):
                await threads.adapted(Late()).process([FakeBatch("0", 0)], tracker)
        finally:
            threads.close()

    run(body())


class Ending(LeaseTenure):
    """Its time is over behind the first look."""

    def __init__(self) -> None:
        self._looks = 0

    def remaining_ms(self) -> int:
        self._looks += 1
        return 1_000 if self._looks == 1 else 0
