"""What users write: a processor per shard, which is given batches and says how far it has come.

    class Count(Processor):
        def process(self, batches, tracker):
            for batch in batches:
                self.store(batch.records())
            tracker.save_checkpoint()

`initialize` and `shutdown` may be left out. A processor is made when this worker gets a shard, and
is used for that shard alone, one call at a time. `Processor` runs in a thread and may block;
`AsyncProcessor` runs on the event loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

from raftwood.loghub.consumer.source import ShardBatch
from raftwood.loghub.consumer.trackers import AsyncCheckpointTracker, CheckpointTracker


class Processor(ABC):
    """For code that blocks; each call is made in a thread, one at a time."""

    def initialize(self, shard_id: str) -> None:  # noqa: B027
        """Called once, before all else: the shard is this worker's."""

    @abstractmethod
    def process(self, batches: Sequence[ShardBatch], tracker: CheckpointTracker) -> None:
        """Deal with what comes next; to be over within `tracker.remaining_s`.

        From then on `tracker.save_checkpoint` and `tracker.check_lease` raise `LeaseLost`, which
        is to end the call. Ask `check_lease` before each thing that nobody can take back: the
        process may have been paused since the last one.

        A call that neither ends nor saves a checkpoint for a lease timeout beyond that loses the
        shard to another worker: what it does later is done twice.

        Raise, and the shard is begun again a little later, behind the last saved checkpoint.
        """

    def shutdown(self, tracker: CheckpointTracker) -> None:  # noqa: B027
        """Called once, behind all else: the last chance to save a checkpoint.

        Where `tracker.is_shard_end`, nothing follows: to return means that all of it is done.
        """


class AsyncProcessor(ABC):
    """For code that never blocks; as `Processor`, on the event loop."""

    async def initialize(self, shard_id: str) -> None:  # noqa: B027
        """As `Processor.initialize`."""

    @abstractmethod
    async def process(self, batches: Sequence[ShardBatch], tracker: AsyncCheckpointTracker) -> None:
        """As `Processor.process`."""

    async def shutdown(self, tracker: AsyncCheckpointTracker) -> None:  # noqa: B027
        """As `Processor.shutdown`."""


AnyProcessor: TypeAlias = Processor | AsyncProcessor
ProcessorFactory: TypeAlias = Callable[[], AnyProcessor]
"""A class of processors is one."""
