"""Sends records to one peer: all partitions that it follows, each in its turn.

A turn is one message. Nothing is sent twice: a message that the connection loses ends the feeds,
and the slave, which hears that when it acks, offers its position anew.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from raftwood.base.errors import OutOfRange
from raftwood.net import Channel
from raftwood.zeppelin.model import PartitionId
from raftwood.zeppelin.node.seams import PartitionStore
from raftwood.zeppelin.replication.sender_rules import Feed, SenderRules
from raftwood.zeppelin.replication.wire import RECORDS, Part, encode_parts

SLICES_MAX: Final = 4
"""Of one message."""


class Sender:
    """What this node, as master, sends to one peer."""

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
        """Send records from a sequence on, until something ends it."""
        self._rules.begin(partition, session=session, first=first)
        self._has_turns.set()
        self.grown(partition)
        if self._task is None:
            self._task = self._loop.create_task(self._run())

    def end(self, partition: PartitionId) -> None:
        self._rules.end(partition)
        # Another's turn may have waited for the room that this made.
        self._has_turns.set()

    def disconnected(self) -> None:
        """What was under way is lost."""
        self._rules.end_all()

    def grown(self, partition: PartitionId) -> None:
        """There may be more of a partition than was sent."""
        store = self._store_of(partition)
        if store is not None and self._rules.grown(partition, store.last_sequence):
            self._has_turns.set()

    def feed(self, partition: PartitionId, session: int) -> Feed | None:
        """What is sent of a partition under a session; None where nothing is."""
        return self._rules.feed(partition, session)

    def feeding(self, partition: PartitionId) -> Feed | None:
        """What is sent of a partition; None where nothing is."""
        return self._rules.feeding(partition)

    def acked(self, feed: Feed, *, sequence: int, arrived: int) -> None:
        """The peer has synced up to a sequence, and got all up to another."""
        self._rules.acked(feed, sequence=sequence, arrived=arrived, now_ms=self._now_ms())
        self.grown(feed.partition)
        # Another's turn may have waited for the room that this made.
        self._has_turns.set()

    def needed(self, partition: PartitionId) -> int | None:
        """The first record that the peer may need; None where nothing is sent to it."""
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
                # Between two turns others of this node have theirs.
                await asyncio.sleep(0)

    async def _turn(self) -> list[Part]:
        parts: list[Part] = []
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

    async def _slice(self, feed: Feed) -> Part | None:
        """The next records of one partition."""
        partition = feed.partition
        store = self._store_of(partition)
        if store is None:
            self._rules.end(partition)
            return None
        try:
            records = await store.records(first=feed.next, bytes_max=self._rules.slice_bytes)
        except OutOfRange:
            # Purged beyond what a slow slave may hold back: it has to take a whole copy.
            self._rules.end(partition)
            return None
        if not records or self._rules.feed(partition, feed.session) is not feed:
            return None
        size = sum(map(len, records))
        self._rules.sent(feed, count=len(records), size=size, now_ms=self._now_ms())
        self._rules.grown(partition, store.last_sequence)
        return Part(partition, feed.session, records)
