"""The master's side of one partition: what it sends to whom, and which writes are done."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from raftwood.zeppelin.model import Gap, NodeId, PartitionId, TableConfig
from raftwood.zeppelin.node.acks import Acks
from raftwood.zeppelin.node.seams import BinlogPosition, PartitionStore, Record, Write
from raftwood.zeppelin.replication.epochs import epoch_at
from raftwood.zeppelin.replication.pacing import Pace
from raftwood.zeppelin.replication.progress import Progress, Reached
from raftwood.zeppelin.replication.sender import Sender
from raftwood.zeppelin.replication.trysync import (
    Answer,
    Holding,
    Offer,
    StreamFrom,
    Wait,
    answer,
)
from raftwood.zeppelin.replication.wire import RepairResponse, Standing

REPAIR_BYTES_MAX: Final = 4 << 20
"""What one answer has of values, plus one."""
_PACE_S: Final = 0.05
"""Answers that wait for a slave are looked at so often, where it says nothing."""


def reached_of(store: PartitionStore) -> Reached:
    return Reached(store.last_sequence, store.written_sequence, store.synced_sequence)


class Leading:
    """A partition while this node is its master, over all epochs of that time."""

    def __init__(
        self,
        partition: PartitionId,
        store: PartitionStore,
        config: TableConfig,
        *,
        sender_of: Callable[[NodeId], Sender | None],
        may_tell: Callable[[], bool],
    ) -> None:
        """`may_tell`: whether clients may be told that writes are done."""
        self._partition = partition
        self._store = store
        self._config = config
        self._sender_of = sender_of
        self._may_tell = may_tell
        self._progress: Progress | None = None
        self._copies: dict[NodeId, int] = {}
        self.slaves: tuple[NodeId, ...] = ()
        self.epoch = 0
        """Of the records that are written from now on."""
        self._is_immediate = config.ack == "memory" and config.min_replicas == 1
        self.acks = Acks(is_immediate=self._is_immediate, count=self._count)
        """Which writes may be called done."""
        # Where a write waits for slaves anyhow, its master cannot run away from them.
        self._is_paced = config.min_replicas == 1
        self._pace = Pace(lag_max_bytes=config.lag_max_bytes, is_of_slaves=self._is_paced)
        self._slowed_for: NodeId | None = None
        """The target that is to catch up."""
        self._loop = asyncio.get_running_loop()
        self._pace_timer: asyncio.TimerHandle | None = None
        self._stop_listening = store.listen(self.moved)

    def begin(
        self, epoch: int, slaves: tuple[NodeId, ...], *, slowed_for: NodeId | None = None
    ) -> None:
        """An epoch with these slaves; its first record, which is empty, goes to the binlog. Call
        `moved` once whoever writes knows of the epoch. `slowed_for` is let catch up.
        """
        store = self._store
        begins = store.last_sequence + 1
        progress = Progress(
            ack=self._config.ack, min_replicas=self._config.min_replicas, begins=begins
        )
        if self._progress is not None:
            progress.take_over(self._progress, slaves)
        store.commit(Record(epoch, begins, ()))
        for gone in self.slaves:
            if gone not in slaves:
                self._end_feed(gone)
        self._progress = progress
        self.epoch, self.slaves = epoch, slaves
        self._slowed_for = slowed_for

    def end(self, *, handed_to: NodeId | None = None) -> None:
        """Another is master, or nobody; `handed_to` became it as it had all that is here."""
        if handed_to is not None and self._progress is not None:
            last = self._store.last_sequence
            self._progress.acked(handed_to, Reached(last, last, last), is_whole=True)
            done = self._progress.done(reached_of(self._store))
            if done > self.acks.reached:
                self.acks.reach(done)
        self.acks.end()
        self._stop_listening()
        if self._pace_timer is not None:
            self._pace_timer.cancel()
        self._store.needed_from = None
        for slave in self.slaves:
            self._end_feed(slave)

    def _end_feed(self, slave: NodeId) -> None:
        self._copies.pop(slave, None)
        sender = self._sender_of(slave)
        if sender is not None:
            sender.end(self._partition)

    # What slaves ask and tell.

    def try_sync(
        self, slave: NodeId, session: int, offer: Offer, *, may_replace: bool = True
    ) -> Answer:
        """`may_replace`: whether the slave knows of the partition what its master does. Before it
        hears of a split it has to keep what is to be another partition's.
        """
        store = self._store
        given = answer(
            offer,
            Holding(
                epoch=self.epoch,
                first=store.first_sequence,
                last=store.last_sequence,
                epochs=store.epochs,
            ),
        )
        if not may_replace and not isinstance(given, StreamFrom):
            given = Wait()
        sender = self._sender_of(slave)
        assert self._progress is not None
        self._progress.lost(slave)
        if sender is not None:
            if isinstance(given, StreamFrom):
                self._copies.pop(slave, None)
                sender.begin(self._partition, session=session, first=given.sequence)
            else:
                sender.end(self._partition)
        self._hold_records()
        return given

    def acked(self, slave: NodeId, standing: Standing) -> tuple[int, Gap] | None:
        """How far a slave is; about how many bytes that is behind, and what is between the two.
        None where nothing is sent to it under its session.
        """
        sender = self._sender_of(slave)
        feed = None if sender is None else sender.feed(self._partition, standing.session)
        if sender is None or feed is None:
            return None
        reached = standing.reached
        sender.acked(feed, sequence=reached.synced, arrived=reached.memory)
        self._hold_records()
        assert self._progress is not None
        self._progress.acked(slave, reached, is_whole=standing.is_whole)
        self.tell()
        last = self._store.last_sequence
        return feed.lag_bytes(last), feed.gap(last)

    async def repair(self, keys: Sequence[bytes], *, now_ms: int) -> RepairResponse:
        """The present values of the first keys, and the position that they are of."""
        store = self._store
        last = store.last_sequence
        position = BinlogPosition(epoch_at(store.epochs, last), last)
        values = await store.multi_get(keys, now_ms=now_ms)
        told: list[Write] = []
        size = 0
        for key, value in zip(keys, values, strict=True):
            if size > REPAIR_BYTES_MAX:
                break
            size += len(key) + (0 if value is None else len(value.data))
            told.append(
                Write(key, None) if value is None else Write(key, value.data, value.expires_ms)
            )
        return RepairResponse(position, told)

    def copy_begins(self, slave: NodeId, *, needs: int) -> None:
        """A copy is made for a slave, which will need records from a sequence on."""
        if self.acks.is_over:
            return  # it was still being made
        self._copies[slave] = needs
        self._hold_records()

    def _hold_records(self) -> None:
        needed = [*self._copies.values()]
        for slave in self.slaves:
            sender = self._sender_of(slave)
            first = None if sender is None else sender.needed(self._partition)
            if first is not None:
                needed.append(first)
        self._store.needed_from = min(needed, default=None)

    # What clients are told.

    def _count(self, sequence: int) -> int:
        return 0 if self._progress is None else self._progress.count(sequence)

    def moved(self) -> None:
        """There is more to send, or more is done."""
        for slave in self.slaves:
            sender = self._sender_of(slave)
            if sender is not None:
                sender.grown(self._partition)
        self.tell()

    def tell(self) -> None:
        """Let it be known that more is done, if it is and may be said."""
        assert self._progress is not None
        done = self._progress.done(reached_of(self._store))
        is_paced = self._is_paced or self._pace.is_holding or self._slowed_for is not None
        # Also once more where nobody is waited for any more, so that the acks tell that.
        was_paced = self.acks.is_paced or self.acks.is_immediate != self._is_immediate
        if (self.slaves and is_paced) or was_paced:
            done = self._paced(done)
        if done > self.acks.reached and self._may_tell():
            self.acks.reach(done)

    def _paced(self, done: int) -> int:
        pace = self._pace
        feeds = {
            slave: feed
            for slave in self.slaves
            if (sender := self._sender_of(slave)) is not None
            and (feed := sender.feeding(self._partition)) is not None
        }
        now_ms = int(self._loop.time() * 1000)
        allowed = pace.allowed(
            done,
            feeds,
            last=self._store.last_sequence,
            now_ms=now_ms,
            target=self._slowed_for,
        )
        is_slowed = self._slowed_for is not None
        self.acks.is_immediate = self._is_immediate and not (pace.is_holding or is_slowed)
        self.acks.is_paced = pace.is_holding
        if pace.is_holding and self._pace_timer is None:
            self._pace_timer = self._loop.call_later(_PACE_S, self._look_again)
        return allowed

    def _look_again(self) -> None:
        self._pace_timer = None
        self.tell()
