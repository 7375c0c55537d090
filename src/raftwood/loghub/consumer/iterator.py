"""`Consumer`: a worker's shards as one iterator of batches.

    async with Consumer(config, store, source=source, environment=environment) as consumer:
        async for batch in consumer:
            ...

Asking for the next batch marks the one before as processed: its checkpoint is saved in memory then,
and handed over when its shard goes to another worker. If the loop is left at a batch, that batch is
not marked. Shards take turns; within a shard batches come in order. A loop that hangs at a batch
loses its shards to other workers.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, Self

from raftwood.base.environment import Environment
from raftwood.base.metrics import Metrics
from raftwood.loghub.consumer.checkpoints import AsyncCheckpointTracker
from raftwood.loghub.consumer.leases import LeaseStore
from raftwood.loghub.consumer.processor import AsyncProcessor
from raftwood.loghub.consumer.shard_consumer import cancelled
from raftwood.loghub.consumer.source import ShardBatch, ShardSource
from raftwood.loghub.consumer.worker import Worker, WorkerConfig

GOES_ON_S: Final = 0.1
"""The shortest interval at which waiting shards record that the loop is alive."""


class _Offer:
    """The batches of one call of process(); the call lasts until they are processed."""

    def __init__(self, batches: Sequence[ShardBatch], tracker: AsyncCheckpointTracker) -> None:
        self.batches = deque(batches)
        self.tracker = tracker
        self.done = asyncio.Event()


class Consumer:
    """Use `async with`; `worker` is the worker that runs inside."""

    def __init__(
        self,
        config: WorkerConfig,
        lease_store: LeaseStore,
        *,
        source: ShardSource,
        environment: Environment,
        metrics: Metrics | None = None,
    ) -> None:
        self.worker = Worker(
            config,
            lambda: _Offering(self),
            lease_store,
            source=source,
            environment=environment,
            metrics=metrics,
        )
        self._offers: deque[_Offer] = deque()
        self._changed = asyncio.Event()
        self._current: _Offer | None = None
        self._running: asyncio.Task[None] | None = None
        self._went_on_s = 0.0
        self._asked = asyncio.Event()
        """Set, and replaced, when the loop asks for a batch, or ends."""

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self.worker.run())
        self._running.add_done_callback(lambda _: self._changed.set())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Hands over all shards and leaves the group."""
        assert self._running is not None
        self.worker.drain()
        self._let_go(is_dealt_with=False)
        self._asked.set()
        await self._running

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ShardBatch:
        self._let_go(is_dealt_with=True)
        self._goes_on()
        while True:
            while self._current is None and self._offers:
                self._current = self._offers.popleft()
            if self._current is not None:
                return self._current.batches[0]
            if self._running is None or self._running.done():
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()

    @property
    def tracker(self) -> AsyncCheckpointTracker | None:
        """Returns the tracker of the last batch's shard: for its epoch, or a persistent save."""
        return None if self._current is None else self._current.tracker

    def _let_go(self, *, is_dealt_with: bool) -> None:
        """Releases the batch that was last handed out."""
        offer = self._current
        if offer is None:
            return
        batch = offer.batches.popleft()
        if is_dealt_with:
            offer.tracker.note(batch)
        self._current = None
        if offer.tracker.is_stopping or not offer.batches or not is_dealt_with:
            offer.done.set()
        else:
            self._offers.append(offer)

    def _goes_on(self) -> None:
        self._asked.set()
        self._asked = asyncio.Event()
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._went_on_s + GOES_ON_S:
            self._went_on_s = now_s
            for offer in self._offers:
                offer.tracker.goes_on()

    async def process_offer(
        self, batches: Sequence[ShardBatch], tracker: AsyncCheckpointTracker
    ) -> None:
        """Waits for a shard's turn until all is processed, or the shard is to be given up."""
        offer = _Offer(batches, tracker)
        self._offers.append(offer)
        self._changed.set()
        done = asyncio.create_task(offer.done.wait())
        stopping = asyncio.create_task(tracker.stopping.wait())
        try:
            await asyncio.wait((done, stopping), return_when=asyncio.FIRST_COMPLETED)
            if offer is self._current:
                await done
            elif offer in self._offers:
                self._offers.remove(offer)
                if tracker.is_hung:
                    # Reporting the call as ended would bring the shard back to the loop that hangs.
                    await self._asked.wait()
        finally:
            await cancelled(done, stopping)


class _Offering(AsyncProcessor):
    """The processor of one shard: it offers the batches to the iterator."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    async def process(self, batches: Sequence[ShardBatch], tracker: AsyncCheckpointTracker) -> None:
        await self._consumer.process_offer(batches, tracker)
