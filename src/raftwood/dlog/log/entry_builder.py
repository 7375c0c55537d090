"""`EntryBuilder`: packs queued messages into entries of a ledger, with snapshots of producers.

`WrittenLedger` is the ledger that a writer appends to, with the entries that wait for acks.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Final, Protocol

from raftwood.base.compression import Codec
from raftwood.base.errors import RaftwoodError
from raftwood.base.files import Buffer
from raftwood.base.futures import fail
from raftwood.base.position import Position, position_of_entry
from raftwood.dlog.ledgers.seams import LedgerWriter
from raftwood.dlog.log.entries import (
    HEAD_BYTES,
    MESSAGES_MAX,
    EntryHead,
    ProducerRun,
    encode_entry,
)
from raftwood.dlog.log.ledger_source import add_runs
from raftwood.dlog.log.producers import DlogProducers

SNAPSHOT_PIECE_BYTES: Final = 256 << 10
SNAPSHOT_EVERY_BYTES: Final = 8 << 20
"""About the most that a take-over reads."""
SNAPSHOT_EVERY_ENTRIES: Final = 4_096
SNAPSHOT_SHARE: Final = 4
"""A large snapshot comes only after this many times its own size."""


class PendingMessage:
    """A message that waits to be sent, or for its ack."""

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
        """A future for another caller that sent the same message; each can be cancelled alone."""
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
    """Builds the entries of one ledger, and notes them in the log's table of producers."""

    def __init__(
        self,
        ledger: int,
        producers: DlogProducers,
        *,
        appended_bytes: int,
        entry_bytes: int,
        compression: Codec,
    ) -> None:
        self.entry = 0
        """The id of the next entry."""
        self._ledger = ledger
        self._appended_bytes = appended_bytes
        self._producers = producers
        self._entry_bytes = entry_bytes
        self._compression = compression
        self._snapshot_entry = 0
        self._snapshot_bytes = 0
        self._bytes_since = 0

    def build(
        self, queue: "deque[PendingMessage]", *, now_ms: int
    ) -> Iterator[tuple[bytes, list[PendingMessage]]]:
        """Yields entries with a large snapshot's pieces, if due, then one of queued messages."""
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

    def _take(self, queue: "deque[PendingMessage]") -> list[PendingMessage]:
        group, size = [queue.popleft()], 0
        size = group[0].size
        while queue and len(group) < MESSAGES_MAX and size + queue[0].size <= self._entry_bytes:
            group.append(queue.popleft())
            size += group[-1].size
        return group


def _runs(group: list[PendingMessage]) -> tuple[ProducerRun, ...]:
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


class AckListener(Protocol):
    """Receives acks, in order, and the first failure."""

    def acked(self, ledger: "WrittenLedger", entry: int, group: list[PendingMessage]) -> None: ...
    def ledger_failed(self, ledger: int, error: BaseException | None) -> None: ...


class WrittenLedger:
    """A ledger that the writer appends to, with its entries that wait for acks."""

    def __init__(self, owner: AckListener, writer: LedgerWriter, builder: EntryBuilder) -> None:
        self._owner = owner
        self.writer = writer
        self.builder = builder
        self.under_way: deque[tuple[int, list[PendingMessage]]] = deque()
        """Entries in order; an entry with a piece of a snapshot alone has no messages."""
        self.has_failed = False
        """Whether the ledger takes nothing more."""
        self._has_refused = False
        """Whether to send nothing more: it would get the number of a refused entry."""
        self.is_closed = False
        self.asks_rotation = False
        self.first_ms = 0
        self.last_ms = 0

    def append(self, data: bytes, group: list[PendingMessage]) -> None:
        self.under_way.append((self.builder.entry - 1, group))
        if self._has_refused:
            return
        future = self.writer.append(data)
        self._has_refused = future.done() and future.exception() is not None
        future.add_done_callback(self._acked)

    def _acked(self, future: "asyncio.Future[int]") -> None:
        error = None if future.cancelled() else future.exception()
        if self.has_failed:
            return
        if error is not None or future.cancelled():
            self.has_failed = True
            self._owner.ledger_failed(self.writer.ledger, error)
            return
        entry, group = self.under_way.popleft()
        assert future.result() == entry, f"entry {future.result()} was acked in place of {entry}"
        self._owner.acked(self, entry, group)
