"""The states of a shard's consumer, and what counts as dealt with."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from raftwood.base.environment import SystemClock
from raftwood.loghub.consumer.checkpoints import (
    AsyncCheckpointTracker,
    CheckpointWriter,
    LeaseTenure,
)
from raftwood.loghub.consumer.leases import LeaseOwner, NewLease, Save, ShardLease, Take
from raftwood.loghub.consumer.memory_store import MemoryLeaseStore
from raftwood.loghub.consumer.processor import AsyncProcessor, ProcessorThreads
from raftwood.loghub.consumer.shard_consumer import (
    TRANSITIONS,
    ShardConsumer,
    ShardConsumerOutcome,
    ShardConsumerState,
)
from raftwood.loghub.consumer.source import ShardBatch
from raftwood.loghub.consumer.worker_metrics import ShardMeter, Totals
from raftwood.loghub.errors import LeaseLost
from tests.kits.loghub.workers import FakeBatch, FakeSource
from tests.kits.running import run

ME = LeaseOwner("a", "p1")


class Granted(LeaseTenure):
    def __init__(self, remaining_ms: int = 1_000) -> None:
        self.left_ms = remaining_ms

    def remaining_ms(self) -> int:
        return self.left_ms

    def may_work(self) -> bool:
        return self.left_ms > 0

    @contextmanager
    def calling(self) -> Iterator[None]:
        yield

    def goes_on(self) -> None:
        pass


async def held() -> tuple[MemoryLeaseStore, ShardLease]:
    store = MemoryLeaseStore()
    await store.create([NewLease("0")])
    (lease,) = await store.take(ME, [Take("0", 0, sets_consumer=True)])
    return store, lease


def test_every_state_but_the_last_goes_on_whatever_its_task_leads_to() -> None:
    for state in (ShardConsumerState.INITIALIZING, ShardConsumerState.PROCESSING):
        for outcome in (
            ShardConsumerOutcome.DONE,
            ShardConsumerOutcome.STOPPED,
            ShardConsumerOutcome.FAILED,
        ):
            assert (state, outcome) in TRANSITIONS
    assert {
        after for (state, _), after in TRANSITIONS.items() if state is ShardConsumerState.STOPPING
    } == {ShardConsumerState.STOP_COMPLETED}
    assert ShardConsumerState.STOP_COMPLETED not in {state for state, _ in TRANSITIONS}


def batches(count: int) -> list[FakeBatch]:
    return [FakeBatch("0", number) for number in range(count)]


def test_a_save_without_a_batch_means_all_that_was_given() -> None:
    async def main() -> None:
        store, lease = await held()
        writer = CheckpointWriter(store, ME.process, lambda _: None)
        tracker = AsyncCheckpointTracker(lease, Granted(), writer)
        with tracker.giving(batches(5)):
            await tracker.save_checkpoint(after=batches(5)[1], persistent=True)
            assert store.leases["0"].checkpoint == "2"
            await tracker.save_checkpoint()
        assert tracker.checkpoint == "5"
        assert store.leases["0"].checkpoint == "2"
        await tracker.store()
        assert store.leases["0"].checkpoint == "5"

    run(main())


def test_what_a_processor_failed_on_is_not_saved_in_its_shutdown() -> None:
    async def main() -> None:
        store, lease = await held()
        writer = CheckpointWriter(store, ME.process, lambda _: None)
        tracker = AsyncCheckpointTracker(lease, Granted(), writer)
        with tracker.giving(batches(2)):
            pass
        with pytest.raises(RuntimeError), tracker.giving(batches(5)):
            raise RuntimeError("planted")
        await tracker.save_checkpoint()
        assert tracker.checkpoint == "2"

    run(main())


def test_what_was_left_undone_because_of_a_stop_is_not_skipped() -> None:
    async def main() -> None:
        store, lease = await held()
        writer = CheckpointWriter(store, ME.process, lambda _: None)
        tracker = AsyncCheckpointTracker(lease, Granted(), writer)
        with tracker.giving(batches(5)):
            await tracker.save_checkpoint(after=batches(5)[2])
            tracker.stopping.set()
        await tracker.save_checkpoint()
        assert tracker.checkpoint == "3"

    run(main())


@pytest.mark.parametrize(
    ("looks", "saves", "checkpoint"),
    [(True, False, "5"), (False, False, "8"), (True, True, "8")],
)
def test_a_call_that_sees_a_stop_at_once_leaves_all_of_its_records(
    looks: bool, saves: bool, checkpoint: str
) -> None:
    async def main() -> None:
        store, lease = await held()
        writer = CheckpointWriter(store, ME.process, lambda _: None)
        tracker = AsyncCheckpointTracker(lease, Granted(), writer)
        with tracker.giving(batches(8)[:5]):
            await tracker.save_checkpoint()
        # The stop comes while the call waits for a thread.
        with tracker.giving(batches(8)[5:]):
            tracker.stopping.set()
            if saves:
                await tracker.save_checkpoint()
            if looks:
                assert tracker.is_stopping
        await tracker.save_checkpoint()
        assert tracker.checkpoint == checkpoint

    run(main())


def test_nothing_is_stored_when_the_lease_is_over_or_anothers() -> None:
    async def main() -> None:
        store, lease = await held()
        refused: list[Save] = []
        writer = CheckpointWriter(store, ME.process, refused.append)
        tenure = Granted(0)
        tracker = AsyncCheckpointTracker(lease, tenure, writer)
        with tracker.giving(batches(1)):
            for is_persistent in (False, True):
                with pytest.raises(LeaseLost, match="not renewed in time"):
                    await tracker.save_checkpoint(persistent=is_persistent)
            with pytest.raises(LeaseLost, match="not renewed in time"):
                tracker.check_lease()
            # Whoever was told so may have undone its work: it is not handed over later.
            assert tracker.checkpoint is None
            assert tracker.unstored() is None
            tenure.left_ms = 1_000
            tracker.check_lease()
            thief = LeaseOwner("b", "p2")
            await store.take(thief, [Take("0", lease.lease_id, sets_consumer=True)])
            with pytest.raises(LeaseLost, match="another worker"):
                await tracker.save_checkpoint(persistent=True)
        assert [save.epoch for save in refused] == [1]
        assert store.leases["0"].checkpoint is None

    run(main())


class Counting(MemoryLeaseStore):
    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[int] = []

    async def save(self, process: str, saves: Sequence[Save]) -> list[str]:
        self.rounds.append(len(saves))
        await asyncio.sleep(0.01)
        return await super().save(process, saves)


def test_checkpoints_that_come_during_a_save_share_the_next_one() -> None:
    async def main() -> None:
        store = Counting()
        names = [str(number) for number in range(20)]
        await store.create([NewLease(name) for name in names])
        await store.take(ME, [Take(name, 0, sets_consumer=True) for name in names])
        writer = CheckpointWriter(store, ME.process, lambda _: None)
        saves = [writer.save([Save(name, 1, "5", 1)]) for name in names]
        await asyncio.gather(*saves, *(writer.save([Save("0", 1, "6", 2)]) for _ in range(3)))
        assert len(store.rounds) <= 2
        assert store.leases["0"].checkpoint == "6"
        assert store.leases["19"].checkpoint == "5"

    run(main())


class Noting(AsyncProcessor):
    """Its lease is over after the first call."""

    def __init__(self, tenure: Granted) -> None:
        self._tenure = tenure
        self.calls: list[str] = []

    async def process(self, batches: Sequence[ShardBatch], tracker: AsyncCheckpointTracker) -> None:
        self.calls.append(f"process up to {batches[-1].next_position}")
        await tracker.save_checkpoint()
        self._tenure.left_ms = 0

    async def shutdown(self, tracker: AsyncCheckpointTracker) -> None:
        self.calls.append(f"shutdown at {tracker.checkpoint}")


def test_a_consumer_looks_at_the_clock_before_each_call_and_stops_by_itself() -> None:
    async def main() -> None:
        store, lease = await held()
        tenure, totals = Granted(), Totals()
        processor = Noting(tenure)
        consumer = ShardConsumer(
            replace(lease, checkpoint="0"),
            lambda: processor,
            ProcessorThreads(1),
            FakeSource(1, length=20),
            AsyncCheckpointTracker(
                lease, tenure, CheckpointWriter(store, ME.process, lambda _: None)
            ),
            tenure,
            ShardMeter(SystemClock(), totals),
            random.Random(1),
            start="begin",
        )
        async with asyncio.timeout(60):
            await consumer.run()
        assert processor.calls == ["process up to 4", "shutdown at 4"]
        assert consumer.state is ShardConsumerState.STOP_COMPLETED
        assert not consumer.has_failed
        assert consumer.tracker.last().checkpoint == "4"
        assert totals.batches == 4

    run(main())
