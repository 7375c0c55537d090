"""One shard being consumed: states, the task of each, and what its end leads to.

A consumer goes through INITIALIZING, PROCESSING, STOPPING and STOP_COMPLETED (section 5.5 of the
LogHub client library's text). `TRANSITIONS` says what follows from how a state's task ended. Every
way out of PROCESSING leads through STOPPING, also a failure and a theft: there the last checkpoint
is handed over, without which the next worker processes again what this one has done
(`test_every_state_but_the_last_goes_on_whatever_its_task_leads_to`).

While process() runs, the next read is under way.
"""

import asyncio
import random
import traceback
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto
from typing import Any, Final, Literal

from raftwood.base.backoff import Backoff
from raftwood.base.errors import RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.loghub.consumer.checkpoints import AsyncCheckpointTracker, LeaseTenure
from raftwood.loghub.consumer.lease_events import StopReason
from raftwood.loghub.consumer.leases import ShardLease
from raftwood.loghub.consumer.processor import AsyncProcessor, ProcessorFactory, ProcessorThreads
from raftwood.loghub.consumer.source import ShardRead, ShardSource
from raftwood.loghub.consumer.worker_metrics import ShardMeter
from raftwood.loghub.errors import LeaseLost

_log = get_logger("consumer")

Start = Literal["begin", "end"]
_READ_PAUSE: Final = Backoff(first_ms=250, longest_ms=5_000)


class ShardConsumerState(Enum):
    """The four states of the text."""

    INITIALIZING = auto()
    PROCESSING = auto()
    STOPPING = auto()
    STOP_COMPLETED = auto()


class ShardConsumerOutcome(Enum):
    """How a state's task ended."""

    DONE = auto()
    SHARD_ENDED = auto()
    STOPPED = auto()
    """It was asked to stop, or the lease's time is over."""
    FAILED = auto()


TRANSITIONS: Final[Mapping[tuple[ShardConsumerState, ShardConsumerOutcome], ShardConsumerState]] = {
    (ShardConsumerState.INITIALIZING, ShardConsumerOutcome.DONE): ShardConsumerState.PROCESSING,
    (ShardConsumerState.INITIALIZING, ShardConsumerOutcome.STOPPED): ShardConsumerState.STOPPING,
    (ShardConsumerState.INITIALIZING, ShardConsumerOutcome.FAILED): ShardConsumerState.STOPPING,
    (ShardConsumerState.PROCESSING, ShardConsumerOutcome.DONE): ShardConsumerState.PROCESSING,
    (ShardConsumerState.PROCESSING, ShardConsumerOutcome.SHARD_ENDED): ShardConsumerState.STOPPING,
    (ShardConsumerState.PROCESSING, ShardConsumerOutcome.STOPPED): ShardConsumerState.STOPPING,
    (ShardConsumerState.PROCESSING, ShardConsumerOutcome.FAILED): ShardConsumerState.STOPPING,
    (ShardConsumerState.STOPPING, ShardConsumerOutcome.DONE): ShardConsumerState.STOP_COMPLETED,
    (ShardConsumerState.STOPPING, ShardConsumerOutcome.FAILED): ShardConsumerState.STOP_COMPLETED,
}


class ShardConsumer:
    """Reads one shard in one epoch; `run` ends when all is stopped.

    A source that is away is waited for: if the consumer gave its shard up, the next worker would
    meet the same source, and shards would go round until it is back
    (`test_a_source_that_is_away_is_waited_for`).
    """

    def __init__(
        self,
        lease: ShardLease,
        factory: ProcessorFactory,
        threads: ProcessorThreads,
        source: ShardSource,
        tracker: AsyncCheckpointTracker,
        tenure: LeaseTenure,
        meter: ShardMeter,
        random_source: random.Random,
        *,
        start: Start,
    ) -> None:
        self.lease = lease
        self.tracker = tracker
        self.meter = meter
        self.state = ShardConsumerState.INITIALIZING
        self.has_failed = False
        self.stop_reason: StopReason | None = None
        self.has_advanced = False
        """A call of process() has ended well since the shard began here. One that fails before
        that will fail again, and is begun later each time."""
        self._factory = factory
        self._threads = threads
        self._processor: AsyncProcessor | None = None
        self._source = source
        self._tenure = tenure
        self._start: Start = start
        self._position = ""
        self._reading: asyncio.Task[ShardRead] | None = None
        self._stopping: asyncio.Task[Literal[True]] | None = None
        self._random = random_source

    def stop(self, reason: StopReason) -> None:
        """Ends after the call of process() that is under way.

        The call is not cancelled: what the user wrote could be left half-done in a database, and
        would be done again by the next worker.
        """
        self.stop_reason = reason
        self.tracker.is_hung = reason is StopReason.HUNG
        self.tracker.stopping.set()
        if self._tenure.is_calling and self._tenure.remaining_ms() <= 0:
            self.meter.overruns()

    def may_save(self) -> bool:
        """Whether what is saved in memory may go to the store now."""
        return self._tenure.may_work()

    async def run(self) -> None:
        """Runs each state's task, and goes to the state that follows from how it ended."""
        tasks = {
            ShardConsumerState.INITIALIZING: self._initialize,
            ShardConsumerState.PROCESSING: self._process,
            ShardConsumerState.STOPPING: self._shut_down,
        }
        try:
            while self.state is not ShardConsumerState.STOP_COMPLETED:
                outcome = await self._guarded(tasks[self.state])
                self.has_failed = self.has_failed or outcome is ShardConsumerOutcome.FAILED
                self.state = TRANSITIONS[self.state, outcome]
        finally:
            await self._stop_reading()
            await cancelled(self._stopping)
            self._source.leave(self.lease.shard)

    async def _guarded(
        self, task: Callable[[], Awaitable[ShardConsumerOutcome]]
    ) -> ShardConsumerOutcome:
        """Catches whatever user code raises: it ends this shard's consumer, and nothing else."""
        try:
            return await task()
        except LeaseLost:
            return (
                ShardConsumerOutcome.DONE
                if self.state is ShardConsumerState.STOPPING
                else ShardConsumerOutcome.STOPPED
            )
        except Exception as error:
            self.meter.totals.failures += 1
            _log.warning(
                "consumer failed",
                shard=self.lease.shard,
                state=self.state.name,
                error=f"{type(error).__name__}: {error}",
                traceback=traceback.format_exc(limit=-8),
            )
            return ShardConsumerOutcome.FAILED

    async def _initialize(self) -> ShardConsumerOutcome:
        lease = self.lease
        if lease.checkpoint is not None:
            self._position = lease.checkpoint
        else:
            # Section 5.4.1 of the text: without a checkpoint the setting decides. The choice is
            # stored before anything is read. A worker that starts at "end" and dies before its
            # first checkpoint would otherwise leave its successor to choose a later end, and all
            # records in between would never be read.
            self._position = await self._first_position()
            self.tracker.set_checkpoint(self._position)
            await self.tracker.store()
        processor = self._threads.adapted(self._factory())
        with self._tenure.calling():
            await processor.initialize(lease.shard)
        self._processor = processor
        return (
            ShardConsumerOutcome.STOPPED if self.tracker.is_stopping else ShardConsumerOutcome.DONE
        )

    async def _first_position(self) -> str:
        """The begin of a child, whatever the setting says: its first records follow its parents'
        last ones, and "end" would skip those that came while the parents were still read."""
        if self._start == "begin" or self.lease.parents:
            return await self._source.begin(self.lease.shard)
        return await self._source.end(self.lease.shard)

    async def _process(self) -> ShardConsumerOutcome:
        read = await self._next_read()
        # The clock is asked before each call, not only at a stop: a process that was paused for an
        # hour goes on right here, before it has learned that its lease is over
        # (`test_a_paused_worker_does_nothing_more_once_its_lease_is_over`).
        if read is None or self.tracker.is_stopping or not self._tenure.may_work():
            return ShardConsumerOutcome.STOPPED
        if not read.is_ended:
            self._begin_read(read.next)
        if read.batches:
            await self._hand_in(read)
        else:
            self.meter.at_end()
        return self._shard_ended() if read.is_ended else ShardConsumerOutcome.DONE

    def _shard_ended(self) -> ShardConsumerOutcome:
        """All of the shard was given to the processor."""
        if self.tracker.is_stopping:
            # The call may have left the rest undone. The next worker goes on behind the checkpoint
            # and finds the end (`test_a_call_that_ends_early_is_not_the_end_of_a_shard`).
            return ShardConsumerOutcome.STOPPED
        self.tracker.is_shard_end = True
        return ShardConsumerOutcome.SHARD_ENDED

    async def _hand_in(self, read: ShardRead) -> None:
        batches = read.batches
        assert self._processor is not None
        self.meter.begins(batches[0].received_ms)
        try:
            with self._tenure.calling(), self.tracker.giving(batches):
                await self._processor.process(batches, self.tracker)
        finally:
            size = sum(batch.size_bytes for batch in batches)
            late_ms = -self._tenure.remaining_ms()
            received_ms = batches[-1].received_ms
            self.meter.ends(len(batches), size, received_ms=received_ms, late_ms=late_ms)
        self.has_advanced = True
        self.tracker.bytes_per_s = self.meter.bytes_per_s

    async def _shut_down(self) -> ShardConsumerOutcome:
        await self._stop_reading()
        if self._processor is not None:
            with self._tenure.calling():
                await self._processor.shutdown(self.tracker)
        if self.tracker.is_shard_end:
            self.tracker.end()
        return ShardConsumerOutcome.DONE

    # Reading

    def _begin_read(self, position: str) -> None:
        self._position = position
        read = self._read(position)
        self._reading = asyncio.get_running_loop().create_task(read)

    async def _read(self, position: str) -> ShardRead:
        """Reads, and retries while the shard is this worker's."""
        pauses_s = _READ_PAUSE.delays_s(self._random)
        while True:
            try:
                return await self._source.read(self.lease.shard, position)
            except RaftwoodError as error:
                if not error.retriable:
                    raise
                self.meter.totals.read_failures += 1
                await asyncio.sleep(next(pauses_s))

    async def _next_read(self) -> ShardRead | None:
        """Returns the next read; None if the consumer is asked to stop before it comes."""
        if self._reading is None:
            self._begin_read(self._position)
        assert self._reading is not None
        if self._stopping is None:
            self._stopping = asyncio.create_task(self.tracker.stopping.wait())
        await asyncio.wait((self._reading, self._stopping), return_when=asyncio.FIRST_COMPLETED)
        if not self._reading.done():
            return None
        reading, self._reading = self._reading, None
        return reading.result()

    async def _stop_reading(self) -> None:
        reading, self._reading = self._reading, None
        await cancelled(reading)


async def cancelled(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancels tasks whose outcome does not matter any more, and waits for them."""
    found = [task for task in tasks if task is not None]
    for task in found:
        task.cancel()
    await asyncio.gather(*found, return_exceptions=True)
