"""The master's side of one partition: sends records to slaves, and decides which writes are done.

`AckPace` says how far a master's answers may run ahead of its slaves, without I/O. Zeppelin's text
gives a slave as many threads as its master (section 1.2) so that it keeps up. Where it does not,
and each write is acked by its master alone, it falls behind without end; the master then dies with
hours of acked writes that no other replica has. So once the best slave is behind by more than half
of what the table allows, and by more than a moment ago, answers wait until it is no further behind
than then: clients get the slave's own pace, and nothing is refused
(`test_the_lag_of_a_slave_is_bounded_at_the_masters_full_rate`).

Clients do not wait for a slave that is catching up or stands still, and no answer waits for longer
than `HELD_MS_MAX`. One slow disk must not stop all writers; the meta server marks a slave that
lags, and does not make it master (`test_a_slave_that_stands_still_is_not_waited_for`,
`test_no_answer_waits_for_long`).

The master helps a migration's target that does not catch up by itself (the text's `slowdown`): for
each two records that the target takes, one more is answered, whatever the table's rule; fewer if
the target would not be done before the slowdown ends. Only records queued for the target count:
those on the link are under way even if clients write slowly, and a long link holds more.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from raftwood.zeppelin.model import Gap, NodeId, PartitionId, TableConfig
from raftwood.zeppelin.records import Acks, BinlogPosition, BinlogRecord, KeyWrite, PartitionStore
from raftwood.zeppelin.replication.epochs import (
    StreamFrom,
    SyncAnswer,
    SyncHolding,
    SyncOffer,
    WaitToSync,
    epoch_at,
    sync_answer,
)
from raftwood.zeppelin.replication.progress import Reached, SlaveProgress
from raftwood.zeppelin.replication.sender import Feed, RecordSender
from raftwood.zeppelin.replication.wire import RepairKeysResponse, SlaveStanding

LOOK_MS: Final = 250
"""Interval of comparisons of a slave's lag."""
STALLED_MS: Final = 3_000
"""The master does not wait for a slave that has taken nothing for so long."""
HELD_MS_MAX: Final = 2_000
SLOWED_TO_MOST: Final = 1 / 2
"""How many answers a target allows for each record that it takes."""
SLOWED_TO_LEAST: Final = 1 / 8
SLOWED_S: Final = 30
"""Time in which the target should be close, if so few answers allow it; the meta server ends the
slowdown after twice that."""
SLOWED_KEPT_MS: Final = 250
"""How long unused answers stay valid, at least; at most twice as long. A far target's acks come in
lumps, each for the time until the next."""
SLOWED_CLOSE: Final = Gap(queued_bytes=64 << 10, drain_ms=100)
"""A target this close is kept close: for each record that it takes one is answered. If all were
answered at once, it would fall back before the freeze. The bound has a time too, since few bytes
take long over a slow link. The meta server asks for less than this."""
_MARK_MS: Final = 20


class _Seen(msgspec.Struct):
    """The progress of one slave, as the pace compares it."""

    feed: Feed
    has: int
    moved_ms: int
    lag_bytes: int
    looked_ms: int
    window_bytes: int | None = None
    """How far behind it may be; None: it holds no answers back."""


class _Slowed(msgspec.Struct):
    """A target for which answers slow down."""

    feed: Feed
    share: float
    """Answers for each record that it takes while it is not close."""
    end: float
    """The sequence up to which clients may get answers."""
    has: int
    moved_ms: int
    grown: float = 0.0
    """The sum of all additions to the end; and its value at two earlier moments."""
    grown_before: float = 0.0
    grown_then: float = 0.0
    then_ms: int = 0


class AckPace:
    """The pace of answers of one partition, on its master."""

    def __init__(self, *, lag_max_bytes: int, is_of_slaves: bool = True) -> None:
        """Without `is_of_slaves` answers wait only for a target: if each write waits for slaves
        anyway, the master cannot run away from them.
        """
        self._is_of_slaves = is_of_slaves
        self._slowed: _Slowed | None = None
        self._close_bytes = lag_max_bytes // 2
        self._leap_bytes = lag_max_bytes // 4
        """A jump of the lag that is compared at once: by the next regular comparison a fast master
        would be far ahead."""
        self._seen: dict[NodeId, _Seen] = {}
        self._held: deque[tuple[int, int]] = deque()
        """Sequences that wait, and since when."""
        self._released = 0
        """All up to this sequence has waited long enough."""

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def allowed(
        self,
        done: int,
        feeds: Mapping[NodeId, Feed],
        *,
        last: int,
        now_ms: int,
        target: NodeId | None = None,
    ) -> int:
        """Returns the sequence up to which clients may get answers; `target` has to catch up."""
        if not done:
            # The master's epoch has just begun: no pace can be computed yet.
            return done
        end = done
        if self._is_of_slaves:
            self._seen = {node: seen for node, seen in self._seen.items() if node in feeds}
            ends = [self._end_of(node, feed, last, now_ms) for node, feed in feeds.items()]
            end = max((done if each is None else each for each in ends), default=done)
        feed = None if target is None else feeds.get(target)
        end = min(end, self._slowed_end(done, feed, last, now_ms))
        if done <= end:
            self._held.clear()
            return done
        held = self._held
        if not held or now_ms - held[-1][1] >= _MARK_MS:
            held.append((done, now_ms))
        while held and now_ms - held[0][1] >= HELD_MS_MAX:
            self._released = held.popleft()[0]
        return min(done, max(end, self._released))

    def _end_of(self, node: NodeId, feed: Feed, last: int, now_ms: int) -> int | None:
        """Returns the sequence up to which a slave lets its master go on; None: no bound."""
        lag_bytes = feed.lag_bytes(last)
        seen = self._seen.get(node)
        if seen is None or seen.feed is not feed:
            seen = self._seen[node] = _Seen(feed, feed.has, now_ms, lag_bytes, now_ms)
        if feed.has > seen.has:
            seen.has, seen.moved_ms = feed.has, now_ms
        if lag_bytes <= self._close_bytes:
            seen.window_bytes = None
        elif seen.window_bytes is not None:
            seen.window_bytes = max(self._close_bytes, min(seen.window_bytes, lag_bytes))
        has_leapt = lag_bytes > self._close_bytes and lag_bytes - seen.lag_bytes >= self._leap_bytes
        if has_leapt or now_ms - seen.looked_ms >= LOOK_MS:
            is_growing = lag_bytes > self._close_bytes and lag_bytes >= seen.lag_bytes
            if seen.window_bytes is None and is_growing:
                seen.window_bytes = lag_bytes
            seen.lag_bytes, seen.looked_ms = lag_bytes, now_ms
        if seen.window_bytes is None or now_ms - seen.moved_ms > STALLED_MS:
            return None
        return feed.has + seen.window_bytes // feed.record_bytes

    def _slowed_end(self, done: int, feed: Feed | None, last: int, now_ms: int) -> int:
        """Returns the sequence up to which a target that catches up lets its master go on."""
        if feed is None:
            self._slowed = None
            return done
        gap, slowed = feed.gap(last), self._slowed
        if slowed is None or slowed.feed is not feed:
            share = 1 - gap.drain_ms / (1_000 * SLOWED_S)
            share = min(max(share, SLOWED_TO_LEAST), SLOWED_TO_MOST)
            slowed = self._slowed = _Slowed(feed, share, done, feed.has, now_ms)
        taken = feed.has - slowed.has
        if taken:
            slowed.has, slowed.moved_ms = feed.has, now_ms
        grown = taken * (1 if gap.is_within(SLOWED_CLOSE) else slowed.share)
        slowed.end += grown
        slowed.grown += grown
        if now_ms - slowed.then_ms >= SLOWED_KEPT_MS:
            slowed.grown_before, slowed.grown_then = slowed.grown_then, slowed.grown
            slowed.then_ms = now_ms
        slowed.end = min(slowed.end, done + slowed.grown - slowed.grown_before)
        return done if now_ms - slowed.moved_ms > STALLED_MS else int(slowed.end)


# The master's side of one partition: sends records to slaves, and decides which writes are done.

REPAIR_BYTES_MAX: Final = 4 << 20
"""Bytes of values in one answer, plus one value."""
_PACE_S: Final = 0.05
"""Interval of checks of answers that wait for a silent slave."""


def reached_of(store: PartitionStore) -> Reached:
    return Reached(store.last_sequence, store.written_sequence, store.synced_sequence)


class MasterReplication:
    """A partition while this node is its master, over all epochs of that time."""

    def __init__(
        self,
        partition: PartitionId,
        store: PartitionStore,
        config: TableConfig,
        *,
        sender_of: Callable[[NodeId], RecordSender | None],
        may_tell: Callable[[], bool],
    ) -> None:
        """`may_tell` returns whether clients may learn that writes are done.

        It asks for the lease once more, at the moment of the answer: a write that was taken under a
        lease must not be acked after its end, when another master may not have it.
        """
        self._partition = partition
        self._store = store
        self._config = config
        self._sender_of = sender_of
        self._may_tell = may_tell
        self._progress: SlaveProgress | None = None
        self._copies: dict[NodeId, int] = {}
        self.slaves: tuple[NodeId, ...] = ()
        self.epoch = 0
        """The epoch of the records that are written from now on."""
        self._is_immediate = config.ack == "memory" and config.min_replicas == 1
        self.acks = Acks(is_immediate=self._is_immediate, count=self._count)
        """Which writes are done."""
        self._is_paced = config.min_replicas == 1
        self._pace = AckPace(lag_max_bytes=config.lag_max_bytes, is_of_slaves=self._is_paced)
        self._slowed_for: NodeId | None = None
        """The migration's target that has to catch up."""
        self._loop = asyncio.get_running_loop()
        self._pace_timer: asyncio.TimerHandle | None = None
        self._stop_listening = store.listen(self.moved)

    def begin(
        self, epoch: int, slaves: tuple[NodeId, ...], *, slowed_for: NodeId | None = None
    ) -> None:
        """Begins an epoch with these slaves and commits its first record, which is empty.

        The record makes earlier ones countable (raft §5.4.2, see `progress`), and shows slaves the
        new epoch even if no client writes. Call `moved` once the writing commands know of the
        epoch. Answers are slowed down for `slowed_for`.
        """
        store = self._store
        begins = store.last_sequence + 1
        progress = SlaveProgress(
            ack=self._config.ack, min_replicas=self._config.min_replicas, begins=begins
        )
        if self._progress is not None:
            progress.take_over(self._progress, slaves)
        store.commit(BinlogRecord(epoch, begins, ()))
        for gone in self.slaves:
            if gone not in slaves:
                self._end_feed(gone)
        self._progress = progress
        self.epoch, self.slaves = epoch, slaves
        self._slowed_for = slowed_for

    def end(self, *, handed_to: NodeId | None = None) -> None:
        """Ends the time as master. `handed_to` became master by a hand-over, with all that is here.

        Clients still wait for writes from before the freeze: the new master has all of them, so
        they are done. After a failover it may lack some, and clients are asked to try again
        (`test_what_was_written_before_a_freeze_is_done_once_its_target_leads`).
        """
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

    # Requests of slaves.

    def try_sync(
        self, slave: NodeId, session: int, offer: SyncOffer, *, may_replace: bool = True
    ) -> SyncAnswer:
        """Answers where a slave resumes.

        `may_replace`: whether the slave knows as much of the partition as its master does. Before
        it learns of a split it has to keep the keys of the new partition: a copy without them, or a
        rewind, would lose them (planted bug "a trimmed copy is taken for whole";
        `test_a_slave_that_hears_late_of_a_split_keeps_what_is_split_off`).
        """
        store = self._store
        given = sync_answer(
            offer,
            SyncHolding(
                epoch=self.epoch,
                first=store.first_sequence,
                last=store.last_sequence,
                epochs=store.epochs,
            ),
        )
        if not may_replace and not isinstance(given, StreamFrom):
            given = WaitToSync()
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

    def acked(self, slave: NodeId, standing: SlaveStanding) -> tuple[int, Gap] | None:
        """Takes a slave's ack; returns about how many bytes it lags, and the gap between the two.
        Returns None if nothing is sent to it under its session.
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

    async def repair(self, keys: Sequence[bytes], *, now_ms: int) -> RepairKeysResponse:
        """Returns the present values of the first keys, and the position of that moment."""
        store = self._store
        last = store.last_sequence
        position = BinlogPosition(epoch_at(store.epochs, last), last)
        values = await store.multi_get(keys, now_ms=now_ms)
        told: list[KeyWrite] = []
        size = 0
        for key, value in zip(keys, values, strict=True):
            if size > REPAIR_BYTES_MAX:
                break
            size += len(key) + (0 if value is None else len(value.data))
            told.append(
                KeyWrite(key, None)
                if value is None
                else KeyWrite(key, value.data, value.expires_ms)
            )
        return RepairKeysResponse(position, told)

    def copy_begins(self, slave: NodeId, *, needs: int) -> None:
        """Notes that a copy is made for a slave, which will need records from a sequence on."""
        if self.acks.is_over:
            return  # The node lost its role while the copy was being made.
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

    # Answers to clients.

    def _count(self, sequence: int) -> int:
        return 0 if self._progress is None else self._progress.count(sequence)

    def moved(self) -> None:
        """Called when there is more to send, or more is done."""
        for slave in self.slaves:
            sender = self._sender_of(slave)
            if sender is not None:
                sender.grown(self._partition)
        self.tell()

    def tell(self) -> None:
        """Marks more writes as done, if clients may learn of it."""
        assert self._progress is not None
        done = self._progress.done(reached_of(self._store))
        is_paced = self._is_paced or self._pace.is_holding or self._slowed_for is not None
        # Once more after the last wait has ended, so that the acks are no longer paced.
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
