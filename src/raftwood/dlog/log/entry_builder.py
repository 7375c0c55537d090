"""Puts messages that wait into entries of one ledger, and snapshots of producers among them."""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Final

from raftwood.base.errors import RaftwoodError
from raftwood.base.files import Buffer
from raftwood.base.futures import fail
from raftwood.base.position import Position, position_of_entry
from raftwood.dlog.log.compression import Compression
from raftwood.dlog.log.entries import MESSAGES_MAX, EntryHead, ProducerRun, encode_entry
from raftwood.dlog.log.messages import HEAD_BYTES
from raftwood.dlog.log.opening import add_runs
from raftwood.dlog.log.producers import Producers

SNAPSHOT_PIECE_BYTES: Final = 256 << 10
SNAPSHOT_EVERY_BYTES: Final = 8 << 20
"""Whoever takes over reads about so much at the most."""
SNAPSHOT_EVERY_ENTRIES: Final = 4_096
SNAPSHOT_SHARE: Final = 4
"""A large snapshot comes only after so many times its own size."""


class Pending:
    """A message that waits: to be sent, or for its ack."""

    __slots__ = ("_others", "future", "parts", "producer", "sequence", "size")

    def __init__(
        self,
        parts: list[Buffer],
        size: int,
        producer: bytes,
        sequence: int,
        future: "asyncio.Future[Position]",
    ) -> None:
        self.parts = parts
        self.size = size
        self.producer = producer
        self.sequence = sequence
        self.future = future
        self._others: list[asyncio.Future[Position]] = []

    def joined(self) -> "asyncio.Future[Position]":
        """For another who sent the same; each may be cancelled alone."""
        future: asyncio.Future[Position] = self.future.get_loop().create_future()
        self._others.append(future)
        return future

    def resolve(self, position: Position) -> None:
        for future in (self.future, *self._others):
            if not future.done():
                future.set_result(position)

    def fail(self, error: RaftwoodError) -> None:
        for future in (self.future, *self._others):
            fail(future, error)


class EntryBuilder:
    """For one ledger; the table of producers is the log's, and gets what is built."""

    def __init__(
        self,
        ledger: int,
        producers: Producers,
        *,
        appended_bytes: int,
        entry_bytes: int,
        compression: Compression,
    ) -> None:
        self.entry = 0
        """The id of the next one."""
        self._ledger = ledger
        self._appended_bytes = appended_bytes
        self._producers = producers
        self._entry_bytes = entry_bytes
        self._compression = compression
        self._snapshot_entry = 0
        self._snapshot_bytes = 0
        self._bytes_since = 0

    def build(
        self, queue: "deque[Pending]", *, now_ms: int
    ) -> Iterator[tuple[bytes, list[Pending]]]:
        """One entry of what waits, and before it those that a large snapshot needs for itself."""
        pieces = self._due_snapshot()
        for number, piece in enumerate(pieces[:-1]):
            head = EntryHead(
                now_ms,
                0,
                snapshot_entry=self._snapshot_entry,
                snapshot=piece,
                snapshot_pieces_left=len(pieces) - 1 - number,
                appended_bytes=self._appended_bytes,
            )
            self.entry += 1
            yield encode_entry(head, (), ()), []
        group = self._take(queue)
        self._appended_bytes += sum([pending.size - HEAD_BYTES for pending in group])
        head = EntryHead(
            now_ms,
            len(group),
            _runs(group),
            self._snapshot_entry,
            pieces[-1] if pieces else b"",
            0,
            self._compression,
            self._appended_bytes,
        )
        parts: list[Buffer] = []
        for pending in group:
            parts += pending.parts
        data = encode_entry(head, parts, [pending.size for pending in group])
        add_runs(self._producers, head, position_of_entry(ledger=self._ledger, entry=self.entry))
        self.entry += 1
        self._bytes_since += len(data)
        yield data, group

    def _due_snapshot(self) -> list[bytes]:
        is_due = (
            self.entry == 0
            or self.entry - self._snapshot_entry >= SNAPSHOT_EVERY_ENTRIES
            or self._bytes_since >= SNAPSHOT_EVERY_BYTES
        )
        if not is_due or (self.entry and self._bytes_since < SNAPSHOT_SHARE * self._snapshot_bytes):
            return []
        pieces = list(self._producers.pieces(SNAPSHOT_PIECE_BYTES))
        self._snapshot_entry = self.entry
        self._snapshot_bytes = sum(len(piece) for piece in pieces)
        self._bytes_since = 0
        return pieces

    def _take(self, queue: "deque[Pending]") -> list[Pending]:
        group, size = [queue.popleft()], 0
        size = group[0].size
        while queue and len(group) < MESSAGES_MAX and size + queue[0].size <= self._entry_bytes:
            group.append(queue.popleft())
            size += group[-1].size
        return group


def _runs(group: list[Pending]) -> tuple[ProducerRun, ...]:
    runs = []
    producer, first, count = group[0].producer, group[0].sequence, 0
    for pending in group:
        if pending.producer == producer and (not producer or pending.sequence == first + count):
            count += 1
            continue
        runs.append(ProducerRun(producer, first, count))
        producer, first, count = pending.producer, pending.sequence, 1
    runs.append(ProducerRun(producer, first, count))
    return tuple(runs)
