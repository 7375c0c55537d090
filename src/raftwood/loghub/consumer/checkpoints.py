"""The checkpoint of each shard: in memory, and saved in the lease store.

Section 5.4.2 of the LogHub client library's text: a checkpoint is kept in memory, or stored at
once; the worker stores what is in memory from time to time and when it loses the shard. Only the
consumer owner may store one, even if the lease is already another's: so a robbed worker's last
flush lands, and its thief repeats nothing.

`CheckpointWriter` saves the checkpoints of all shards: what comes during one call goes with the
next. With a call for each, a worker with a hundred shards would do nothing but save checkpoints
(`test_checkpoints_that_come_during_a_save_share_the_next_one`). `LeaseTenure` says how long a shard
is still this worker's; its consumer asks before each step.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from raftwood.base.errors import RaftwoodError
from raftwood.loghub.consumer.lease_agent import LeaseAgent
from raftwood.loghub.consumer.leases import SHARD_END, LeaseStore, Save, ShardLease
from raftwood.loghub.consumer.source import ShardBatch
from raftwood.loghub.errors import LeaseLost


class _Round:
    """Checkpoints that are saved by one call, the newest of each shard."""

    def __init__(self) -> None:
        self.saves: dict[str, Save] = {}
        self.is_done = False
        self.refused: Sequence[str] = ()
        self.error: RaftwoodError | None = None


class CheckpointWriter:
    """Saves the checkpoints of one worker; calls `on_refused` for each that the store refuses."""

    def __init__(self, store: LeaseStore, process: str, on_refused: Callable[[Save], None]) -> None:
        self._store = store
        self._process = process
        self._on_refused = on_refused
        self._gathering = _Round()
        self._lock = asyncio.Lock()

    async def save(self, saves: Sequence[Save]) -> None:
        """Returns when they are stored; `LeaseLost` if one was refused."""
        shared = self._gathering
        for save in saves:
            before = shared.saves.get(save.shard)
            if before is None or (before.epoch, before.seq) < (save.epoch, save.seq):
                shared.saves[save.shard] = save
        async with self._lock:
            if not shared.is_done:
                await self._write(shared)
        if shared.error is not None:
            raise type(shared.error)(shared.error.message) from shared.error
        refused = [save.shard for save in saves if save.shard in shared.refused]
        if refused:
            raise LeaseLost(f"shards {', '.join(refused)} are consumed by another worker by now")

    async def _write(self, shared: _Round) -> None:
        self._gathering = _Round()
        try:
            shared.refused = await self._store.save(self._process, list(shared.saves.values()))
        except RaftwoodError as error:
            shared.error = error
        shared.is_done = True
        for shard in shared.refused:
            self._on_refused(shared.saves[shard])


class LeaseTenure:
    """How long one shard is this worker's in one epoch."""

    def __init__(
        self, agent: LeaseAgent, now_ms: Callable[[], int], *, shard: str, epoch: int
    ) -> None:
        self._agent = agent
        self._now_ms = now_ms
        self._shard = shard
        self._epoch = epoch
        self._last_ms = 0
        self.is_calling = False
        """A call of the user's processor is under way."""

    def remaining_ms(self) -> int:
        """The time until the lease is over, also while the shard is being given up.

        A processor that is asked to stop still has to save what it did; the store's fence, not
        this clock, decides whether that lands.
        """
        # The agent answers 0 once it has sent `StopConsumer`: the last deadline counts.
        deadline_ms = self._agent.deadline_ms(self._shard, self._epoch)
        self._last_ms = max(self._last_ms, deadline_ms)
        return self._last_ms - self._now_ms()

    def may_work(self) -> bool:
        return self._agent.may_work(self._shard, self._epoch, self._now_ms())

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Surrounds each call of the user's processor: a call that hangs loses the shard."""
        self.is_calling = True
        self.goes_on()
        try:
            yield
        finally:
            self.is_calling = False
            self._agent.call_ends(self._shard, self._epoch)

    def goes_on(self) -> None:
        """Says that the call under way does not hang."""
        if self.is_calling:
            self._agent.call_begins(self._shard, self._epoch, self._now_ms())


class AsyncCheckpointTracker:
    """The checkpoint of one shard in one epoch."""

    def __init__(self, lease: ShardLease, tenure: LeaseTenure, writer: CheckpointWriter) -> None:
        self.shard_id = lease.shard
        self.epoch = lease.epoch
        """Grows with each worker that gets the shard. The store can fence checkpoints and nothing
        else: a call of process() that outlasts its lease still writes to the user's database. That
        database can fence too, if it refuses a smaller epoch than it has seen."""
        self.is_shard_end = False
        """The whole shard is processed, and nothing follows."""
        self.stopping = asyncio.Event()
        """Set when the shard is to be given up: a long call may skip the rest of its work."""
        self.is_hung = False
        """The shard is to be given up because the call that is under way takes too long."""
        self._given: str | None = None
        """The position behind the last batch that the processor received and did not fail on."""
        self._after = ""
        """The position that the call of process() under way has saved last; empty if it has saved
        none."""
        self._has_seen_stop = False
        """Whether the call of process() under way knows that it is to stop."""
        self.bytes_per_s = lease.bytes_per_s
        self._tenure = tenure
        self._writer = writer
        # One value, since a thread may set it while the loop reads it: position and number of two
        # different saves must never be stored together.
        self._saved = (lease.checkpoint, lease.seq)
        self._stored_seq = lease.seq

    @property
    def remaining_s(self) -> float:
        """Returns how long the lease is still valid; each renewal extends it."""
        return self._tenure.remaining_ms() / 1000

    @property
    def is_stopping(self) -> bool:
        """Whether the shard is to be given up, or the lease's time is over."""
        is_stopping = self.stopping.is_set() or self._tenure.remaining_ms() <= 0
        self._has_seen_stop |= is_stopping
        return is_stopping

    def check_lease(self) -> None:
        """Raises `LeaseLost` if the lease's time is over: the shard may be another worker's.

        A paused call cannot be ended from outside; it learns here that it must end.
        """
        if self._tenure.remaining_ms() <= 0:
            raise LeaseLost(
                f"the lease of shard {self.shard_id} was not renewed in time: nothing can be "
                "saved, and another worker may process what follows the last saved checkpoint"
            )

    @property
    def checkpoint(self) -> str | None:
        """Returns the checkpoint last saved, in memory or in the store."""
        return self._saved[0]

    async def save_checkpoint(
        self, *, after: ShardBatch | None = None, persistent: bool = False
    ) -> None:
        """Marks all records up to a batch as processed; without a batch, all that were given so
        far.

        A save in memory reaches the store in a few seconds, and when the shard is given up; one
        with `persistent` is stored on return. Raises `LeaseLost` if the lease's time is over, or
        the shard is another worker's by now: nothing is saved then, not even in memory. A processor
        that gets the error may undo its work; if the checkpoint landed later, those records would
        be lost (`test_nothing_is_stored_when_the_lease_is_over_or_anothers`). A save also shows
        that a long call does not hang.
        """
        self.check_lease()
        self.note(after)
        if persistent:
            await self.store()

    def note(self, after: ShardBatch | None = None) -> None:
        """Saves in memory, even late: the store refuses it if the shard is another worker's."""
        self.goes_on()
        position = self._given if after is None else after.next_position
        self._after = position or ""
        if position is not None and not self.is_shard_end:
            self.set_checkpoint(position)

    def goes_on(self) -> None:
        """Says that the call under way does not hang, however long it takes."""
        self._tenure.goes_on()

    @contextmanager
    def giving(self, batches: Sequence[ShardBatch]) -> Iterator[None]:
        """Surrounds a call of process()."""
        before = self._given
        self._given, self._after = batches[-1].next_position, ""
        self._has_seen_stop = False
        try:
            yield
        except BaseException:
            # The usual shutdown() saves all that was given. The batch that the processor failed on
            # must not be part of that, or no worker processes it again
            # (`test_what_a_processor_failed_on_is_not_saved_in_its_shutdown`).
            self._given = before
            raise
        has_seen_stop = self._has_seen_stop
        if self.is_stopping and (self._after or has_seen_stop):
            # The call has left the rest undone, as it may while it is asked to stop: shutdown()
            # must not save behind it
            # (`test_what_was_left_undone_because_of_a_stop_is_not_skipped`). A call that has seen
            # the stop and saved nothing has processed nothing, as far as anyone knows
            # (`test_a_call_that_sees_a_stop_at_once_leaves_all_of_its_records`).
            self._given = self._after or before

    def set_checkpoint(self, checkpoint: str) -> None:
        self._saved = (checkpoint, self._saved[1] + 1)

    def end(self) -> None:
        """Records that the shard was read to its end, and its processor is done with it."""
        self.set_checkpoint(SHARD_END)

    async def store(self) -> None:
        """Stores what was saved in memory."""
        save = self.unstored()
        if save is None:
            return
        self.check_lease()
        await self._writer.save([save])
        self.stored(save)

    def unstored(self) -> Save | None:
        save = self.last()
        return save if save.seq > self._stored_seq else None

    def stored(self, save: Save) -> None:
        self._stored_seq = max(self._stored_seq, save.seq)

    def last(self) -> Save:
        """Returns the checkpoint to hand over."""
        checkpoint, seq = self._saved
        return Save(self.shard_id, self.epoch, checkpoint, seq, self.bytes_per_s)


class CheckpointTracker:
    """The tracker of a processor that runs in a thread."""

    def __init__(self, tracker: AsyncCheckpointTracker, loop: asyncio.AbstractEventLoop) -> None:
        self._tracker = tracker
        self._loop = loop

    @property
    def shard_id(self) -> str:
        return self._tracker.shard_id

    @property
    def epoch(self) -> int:
        """See `AsyncCheckpointTracker.epoch`."""
        return self._tracker.epoch

    @property
    def is_shard_end(self) -> bool:
        return self._tracker.is_shard_end

    @property
    def is_stopping(self) -> bool:
        return self._tracker.is_stopping

    @property
    def remaining_s(self) -> float:
        return self._tracker.remaining_s

    @property
    def checkpoint(self) -> str | None:
        return self._tracker.checkpoint

    def check_lease(self) -> None:
        """See `AsyncCheckpointTracker.check_lease`."""
        self._tracker.check_lease()

    def save_checkpoint(self, *, after: ShardBatch | None = None, persistent: bool = False) -> None:
        """See `AsyncCheckpointTracker.save_checkpoint`."""
        self._tracker.check_lease()
        self._tracker.note(after)
        if persistent:
            asyncio.run_coroutine_threadsafe(self._tracker.store(), self._loop).result()
