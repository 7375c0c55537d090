"""Sends records to one slave node: all partitions that it follows, in turn.

`SenderRules` decides which partition is next, and how much of it, without I/O. Each partition with
records to send gets a slice in turn, so that a busy one does not keep others waiting (section 1.3
of Zeppelin's text, where each partition has a slice of time); each has a window of bytes that the
slave has not synced yet, so that a slow slave is never flooded
(`test_whatever_happens_no_turn_is_lost_and_windows_hold`).

Nor is a slow link: the bytes under way are no more than the peer lately received in a moment
(`Rate`: the delivery rate of BBR). A queue in front of a slow link delays everything behind it:
pings, so that the peer seems dead; records of other partitions; and the last records of a partition
that is frozen for its hand-over
(`test_a_link_is_used_in_full_and_what_is_sent_over_it_is_not_late`).
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from raftwood.base.errors import OutOfRange
from raftwood.net import Channel
from raftwood.zeppelin.model import Gap, PartitionId
from raftwood.zeppelin.records import PartitionStore
from raftwood.zeppelin.replication.wire import RECORDS, RecordsPart, encode_parts

SLICE_BYTES: Final = 256 << 10
WINDOW_BYTES: Final = 4 << 20
"""Bytes that a partition may have under way to a slave, plus what the link holds, and a slice."""
PEER_WINDOW_BYTES: Final = 32 << 20
"""Bytes that all partitions together may have under way to one slave, plus one slice."""

FLIGHT_MS: Final = 1_000
"""The link holds no more than arrives at the peer in this time, plus one slice. It is above the
round trip of any link on earth, so each link is used in full."""
FLIGHT_BYTES_MIN: Final = 256 << 10
_SLICES: Final = 32
"""A flight has at least this many slices, because a message is received and acked as a whole."""
_RATE_FIRST_BYTES_PER_S: Final = 1 << 20
"""The rate assumed until a window was full for the first time."""
_RATE_KNOWN_MS: Final = 3_000

_Mark: TypeAlias = tuple[int, int, bool]
"""The start of a measurement: when a slice was sent, how many bytes had arrived by then, and
whether a window was full.
"""


class Rate:
    """How fast bytes arrive at a peer: the best recent rate.

    A measurement counts the bytes that arrive between the sending of a slice and its own arrival.
    If more could have been sent, the figure is a lower bound: an idle hour must not make a fast
    link look slow.
    """

    __slots__ = (
        "_before",
        "_best",
        "_got_bytes",
        "_round_trip_ms",
        "_since_ms",
        "under_way_bytes",
    )

    def __init__(self) -> None:
        self._best = self._before = _RATE_FIRST_BYTES_PER_S
        self._since_ms = 0
        self._got_bytes = 0
        self._round_trip_ms: int | None = None
        self.under_way_bytes = 0

    @property
    def bytes_per_s(self) -> int:
        return max(self._best, self._before, 1)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes on the link while nothing waits: those that arrive within the least round trip."""
        return self.bytes_per_s * (self._round_trip_ms or 0) // 1_000

    def sent(self, size: int, now_ms: int, *, is_full: bool) -> _Mark:
        self.under_way_bytes += size
        return now_ms, self._got_bytes, is_full

    def got(self, size: int, mark: _Mark, now_ms: int) -> None:
        sent_ms, bytes_before, is_full = mark
        round_trip_ms = now_ms - sent_ms
        if self._round_trip_ms is None or round_trip_ms < self._round_trip_ms:
            self._round_trip_ms = round_trip_ms
        self.under_way_bytes -= size
        self._got_bytes += size
        bytes_per_s = 1_000 * (self._got_bytes - bytes_before) // max(1, round_trip_ms)
        if is_full and now_ms - self._since_ms >= _RATE_KNOWN_MS:
            self._before, self._best, self._since_ms = self._best, bytes_per_s, now_ms
        self._best = max(self._best, bytes_per_s)

    def lost(self, size: int) -> None:
        """Subtracts bytes that will not arrive."""
        self.under_way_bytes -= size


class _Sent:
    """The slices of a feed that are under way, as one rate counts them: until they arrive, or until
    they are synced.
    """

    __slots__ = ("_slices", "bytes", "rate")

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self.bytes = 0
        self._slices: deque[tuple[int, int, _Mark]] = deque()

    def add(self, last: int, size: int, now_ms: int, *, is_full: bool) -> None:
        self.bytes += size
        self._slices.append((last, size, self.rate.sent(size, now_ms, is_full=is_full)))

    def got(self, sequence: int, now_ms: int) -> None:
        """Counts all slices up to a sequence as arrived."""
        slices = self._slices
        while slices and slices[0][0] <= sequence:
            _, size, mark = slices.popleft()
            self.bytes -= size
            self.rate.got(size, mark, now_ms)


class Feed:
    """The stream of one partition to one slave."""

    __slots__ = (
        "_arriving",
        "_sent_bytes",
        "_sent_count",
        "_syncing",
        "has",
        "is_queued",
        "next",
        "partition",
        "session",
    )

    def __init__(
        self,
        partition: PartitionId,
        *,
        session: int,
        first: int,
        arriving: Rate | None = None,
        syncing: Rate | None = None,
    ) -> None:
        """The rates are those of the peer, over all its partitions."""
        self.partition = partition
        self.session = session
        self.next = first
        """The sequence to send next."""
        self.has = first - 1
        """The last sequence that the slave has synced."""
        self.is_queued = False
        self._arriving = _Sent(arriving or Rate())
        self._syncing = _Sent(syncing or Rate())
        self._sent_count = self._sent_bytes = 0

    @property
    def under_way_bytes(self) -> int:
        """Bytes that were sent and that the slave has not synced."""
        return self._syncing.bytes

    @property
    def window_bytes(self) -> int:
        """Bytes that may be under way. The bytes that a long link holds are added: with a fixed
        window a link with a long round trip would be empty most of the time.
        """
        return WINDOW_BYTES + self._syncing.rate.in_flight_bytes

    @property
    def has_room(self) -> bool:
        return self.under_way_bytes < self.window_bytes

    def sent(self, *, count: int, size: int, now_ms: int, is_full: bool = True) -> None:
        """Notes that records were sent. `is_full`: a window is full, so no more may be sent now."""
        self.next += count
        for sent in (self._arriving, self._syncing):
            sent.add(self.next - 1, size, now_ms, is_full=is_full)
        self._sent_count += count
        self._sent_bytes += size

    def unsent_bytes(self, last: int) -> int:
        """Returns about how many bytes are not sent yet, by the average size of sent records."""
        unsent = max(0, last + 1 - self.next)
        return unsent * self._sent_bytes // max(1, self._sent_count)

    def lag_bytes(self, last: int) -> int:
        """Returns about how far the slave lags."""
        return self.under_way_bytes + self.unsent_bytes(last)

    def gap(self, last: int) -> Gap:
        """Returns the gap between the slave and its master."""
        lag_bytes, rate = self.lag_bytes(last), self._syncing.rate
        return Gap(
            queued_bytes=max(0, lag_bytes - rate.in_flight_bytes),
            drain_ms=1_000 * lag_bytes // rate.bytes_per_s,
        )

    @property
    def record_bytes(self) -> int:
        """Average size of the records that were sent."""
        return max(1, self._sent_bytes // max(1, self._sent_count))

    def acked(self, sequence: int, *, arrived: int, now_ms: int) -> None:
        """Notes that the slave has synced all up to a sequence, and received all up to another."""
        self.has = max(self.has, sequence)
        self._arriving.got(arrived, now_ms)
        self._syncing.got(sequence, now_ms)

    def lost(self) -> None:
        """Subtracts the bytes under way: they will not be acked."""
        for sent in (self._arriving, self._syncing):
            sent.rate.lost(sent.bytes)


class SenderRules:
    """The feeds of one sender, in the order of their turns."""

    def __init__(self) -> None:
        self._feeds: dict[PartitionId, Feed] = {}
        self._turns: deque[Feed] = deque()
        self._arriving, self._syncing = Rate(), Rate()

    @property
    def flight_bytes(self) -> int:
        """Bytes that may be on the link, or wait at its beginning: the two cannot be told apart."""
        return max(FLIGHT_BYTES_MIN, self._arriving.bytes_per_s * FLIGHT_MS // 1_000)

    @property
    def slice_bytes(self) -> int:
        """Bytes that one partition may send before the next has its turn."""
        return min(SLICE_BYTES, self.flight_bytes // _SLICES)

    @property
    def _has_room(self) -> bool:
        return (
            self._syncing.under_way_bytes < PEER_WINDOW_BYTES
            and self._arriving.under_way_bytes < self.flight_bytes
        )

    def __len__(self) -> int:
        return len(self._feeds)

    def begin(self, partition: PartitionId, *, session: int, first: int) -> Feed:
        """Begins to send a partition from a sequence on; an earlier session ends."""
        self.end(partition)
        feed = self._feeds[partition] = Feed(
            partition,
            session=session,
            first=first,
            arriving=self._arriving,
            syncing=self._syncing,
        )
        return feed

    def end(self, partition: PartitionId) -> None:
        feed = self._feeds.pop(partition, None)
        if feed is not None:
            feed.lost()
            if feed.is_queued:
                self._turns.remove(feed)

    def end_all(self) -> None:
        self._feeds.clear()
        self._turns.clear()
        # The next connection may take another route, with another rate.
        self._arriving, self._syncing = Rate(), Rate()

    def sent(self, feed: Feed, *, count: int, size: int, now_ms: int) -> None:
        is_full = (
            feed.under_way_bytes + size >= feed.window_bytes
            or self._arriving.under_way_bytes + size >= self.flight_bytes
            or self._syncing.under_way_bytes + size >= PEER_WINDOW_BYTES
        )
        feed.sent(count=count, size=size, now_ms=now_ms, is_full=is_full)

    def acked(self, feed: Feed, *, sequence: int, arrived: int, now_ms: int) -> None:
        feed.acked(sequence, arrived=arrived, now_ms=now_ms)

    def needed(self, partition: PartitionId) -> int | None:
        """Returns the oldest record that a partition's slave may need, which may have lost what was
        sent; None without a feed.
        """
        feed = self._feeds.get(partition)
        return None if feed is None else feed.has + 1

    def feed(self, partition: PartitionId, session: int) -> Feed | None:
        """The present feed of a partition, if it is of this session."""
        feed = self._feeds.get(partition)
        return feed if feed is not None and feed.session == session else None

    def feeding(self, partition: PartitionId) -> Feed | None:
        """The present feed of a partition."""
        return self._feeds.get(partition)

    def grown(self, partition: PartitionId, last: int) -> bool:
        """Notes that a partition has more records; returns whether it has queued for a turn now."""
        feed = self._feeds.get(partition)
        if feed is None or feed.is_queued or feed.next > last or not feed.has_room:
            return False
        feed.is_queued = True
        self._turns.append(feed)
        return True

    def next(self) -> Feed | None:
        """Returns the feed whose turn it is; `grown` queues it again if more is left."""
        if not self._turns or not self._has_room:
            return None
        feed = self._turns.popleft()
        feed.is_queued = False
        return feed


# Sends records to one peer: all partitions that it follows, in turn.
#
# A turn is one message. Nothing is sent twice: a lost message ends the feeds, and the slave, which
# learns of it when it acks, offers its position anew. Resending from a guess of what arrived would
# need a second way to find a slave's position, beside TrySync.

SLICES_MAX: Final = 4
"""Slices in one message."""


class RecordSender:
    """Sends the records of this node's partitions, as their master, to one peer."""

    def __init__(
        self, channel: Channel, store_of: Callable[[PartitionId], PartitionStore | None]
    ) -> None:
        self._channel = channel
        self._store_of = store_of
        self._rules = SenderRules()
        self._has_turns = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def begin(self, partition: PartitionId, *, session: int, first: int) -> None:
        """Sends records from a sequence on, until something ends it."""
        self._rules.begin(partition, session=session, first=first)
        self._has_turns.set()
        self.grown(partition)
        if self._task is None:
            self._task = self._loop.create_task(self._run())

    def end(self, partition: PartitionId) -> None:
        self._rules.end(partition)
        # Another partition may have waited for this room.
        self._has_turns.set()

    def disconnected(self) -> None:
        """Notes that the connection was lost, with all that was under way."""
        self._rules.end_all()

    def grown(self, partition: PartitionId) -> None:
        """Notes that a partition may have records to send."""
        store = self._store_of(partition)
        if store is not None and self._rules.grown(partition, store.last_sequence):
            self._has_turns.set()

    def feed(self, partition: PartitionId, session: int) -> Feed | None:
        """The feed of a partition under a session, if there is one."""
        return self._rules.feed(partition, session)

    def feeding(self, partition: PartitionId) -> Feed | None:
        """The feed of a partition, if there is one."""
        return self._rules.feeding(partition)

    def acked(self, feed: Feed, *, sequence: int, arrived: int) -> None:
        """Notes that the peer has synced up to a sequence, and received all up to another."""
        self._rules.acked(feed, sequence=sequence, arrived=arrived, now_ms=self._now_ms())
        self.grown(feed.partition)
        # Another partition may have waited for this room.
        self._has_turns.set()

    def needed(self, partition: PartitionId) -> int | None:
        """Returns the first record that the peer may need; None if nothing is sent to it."""
        return self._rules.needed(partition)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1_000)

    async def _run(self) -> None:
        while True:
            await self._has_turns.wait()
            self._has_turns.clear()
            while parts := await self._turn():
                if not self._channel.send(RECORDS, encode_parts(parts)):
                    self._rules.end_all()
                # Let other tasks of this node run between two turns, even while there is always
                # more to send.
                await asyncio.sleep(0)

    async def _turn(self) -> list[RecordsPart]:
        parts: list[RecordsPart] = []
        size, size_max = 0, SLICES_MAX * self._rules.slice_bytes
        while size < size_max:
            feed = self._rules.next()
            if feed is None:
                break
            part = await self._slice(feed)
            if part is not None:
                parts.append(part)
                size += sum(map(len, part.records))
        return parts

    async def _slice(self, feed: Feed) -> RecordsPart | None:
        """Returns the next records of one partition."""
        partition = feed.partition
        store = self._store_of(partition)
        if store is None:
            self._rules.end(partition)
            return None
        try:
            records = await store.records(first=feed.next, bytes_max=self._rules.slice_bytes)
        except OutOfRange:
            # The records are purged: a slow slave may keep only so many. It has to take a whole
            # copy, which is less than what it missed.
            self._rules.end(partition)
            return None
        if not records or self._rules.feed(partition, feed.session) is not feed:
            return None
        size = sum(map(len, records))
        self._rules.sent(feed, count=len(records), size=size, now_ms=self._now_ms())
        self._rules.grown(partition, store.last_sequence)
        return RecordsPart(partition, feed.session, records)
