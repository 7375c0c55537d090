"""Which partition a sender serves next, and how much of it. No I/O.

One sender serves all partitions that one slave node follows. Each that has something to send gets a
slice in turn, so that a busy one does not keep others waiting; each has a window of bytes that the
slave has not synced yet, so that a slow slave is never flooded.
"""

from collections import deque
from typing import Final

from raftwood.zeppelin.model import PartitionId

SLICE_BYTES: Final = 256 << 10
"""What one partition may send before the next has its turn."""
WINDOW_BYTES: Final = 4 << 20
"""What one partition may have under way to one slave, plus one slice."""
PEER_WINDOW_BYTES: Final = 32 << 20
"""What all partitions together may have under way to one slave, plus one slice."""


class Feed:
    """What is sent of one partition to one slave."""

    __slots__ = (
        "_sent",
        "_sent_bytes",
        "_sent_count",
        "has",
        "is_queued",
        "next",
        "partition",
        "session",
        "under_way_bytes",
    )

    def __init__(self, partition: PartitionId, *, session: int, first: int) -> None:
        self.partition = partition
        self.session = session
        self.next = first
        """The sequence to send next."""
        self.has = first - 1
        """All up to this sequence the slave has synced."""
        self.under_way_bytes = 0
        self.is_queued = False
        self._sent: deque[tuple[int, int]] = deque()
        self._sent_count = self._sent_bytes = 0

    @property
    def has_room(self) -> bool:
        return self.under_way_bytes < WINDOW_BYTES

    def sent(self, *, count: int, size: int) -> None:
        self.next += count
        self.under_way_bytes += size
        self._sent.append((self.next - 1, size))
        self._sent_count += count
        self._sent_bytes += size

    def lag_bytes(self, last: int) -> int:
        """About how far the slave is behind: what is not sent counts as large as what was."""
        unsent = max(0, last + 1 - self.next)
        return self.under_way_bytes + unsent * self._sent_bytes // max(1, self._sent_count)

    @property
    def record_bytes(self) -> int:
        """Of a record that was sent, on average."""
        return max(1, self._sent_bytes // max(1, self._sent_count))

    def acked(self, sequence: int) -> int:
        """The slave has synced all up to a sequence; the bytes that are no longer under way."""
        self.has = max(self.has, sequence)
        freed = 0
        while self._sent and self._sent[0][0] <= sequence:
            freed += self._sent.popleft()[1]
        self.under_way_bytes -= freed
        return freed


class SenderRules:
    """The feeds of one sender, in the order of their turns."""

    def __init__(self) -> None:
        self._feeds: dict[PartitionId, Feed] = {}
        self._turns: deque[Feed] = deque()
        self._under_way_bytes = 0

    def __len__(self) -> int:
        return len(self._feeds)

    def begin(self, partition: PartitionId, *, session: int, first: int) -> Feed:
        """Feed a partition from a sequence on; what was fed before under another session ends."""
        self.end(partition)
        feed = self._feeds[partition] = Feed(partition, session=session, first=first)
        return feed

    def end(self, partition: PartitionId) -> None:
        feed = self._feeds.pop(partition, None)
        if feed is not None:
            self._under_way_bytes -= feed.under_way_bytes
            if feed.is_queued:
                self._turns.remove(feed)

    def end_all(self) -> None:
        self._feeds.clear()
        self._turns.clear()
        self._under_way_bytes = 0

    def sent(self, feed: Feed, *, count: int, size: int) -> None:
        feed.sent(count=count, size=size)
        self._under_way_bytes += size

    def acked(self, feed: Feed, *, sequence: int) -> None:
        self._under_way_bytes -= feed.acked(sequence)

    def needed(self, partition: PartitionId) -> int | None:
        """The oldest record that may have to be read for a partition's slave, which may have lost
        what was sent; None without one.
        """
        feed = self._feeds.get(partition)
        return None if feed is None else feed.has + 1

    def feed(self, partition: PartitionId, session: int) -> Feed | None:
        """The one that is on, if it is of this session."""
        feed = self._feeds.get(partition)
        return feed if feed is not None and feed.session == session else None

    def feeding(self, partition: PartitionId) -> Feed | None:
        """The one that is on, whatever its session."""
        return self._feeds.get(partition)

    def grown(self, partition: PartitionId, last: int) -> bool:
        """There is more of a partition; whether a turn of it has come up by that."""
        feed = self._feeds.get(partition)
        if feed is None or feed.is_queued or feed.next > last or not feed.has_room:
            return False
        feed.is_queued = True
        self._turns.append(feed)
        return True

    def next(self) -> Feed | None:
        """Whose turn it is; it goes to the end of the queue by `grown` where more is left."""
        if not self._turns or self._under_way_bytes >= PEER_WINDOW_BYTES:
            return None
        feed = self._turns.popleft()
        feed.is_queued = False
        return feed
