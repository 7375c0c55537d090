"""`WrittenLedger`: a ledger that is written, from its writer's side: what waits for acks."""

import asyncio
from collections import deque
from typing import Protocol

from raftwood.dlog.ledgers.ledger_store import LedgerWriter
from raftwood.dlog.log.entry_builder import EntryBuilder, Pending


class LedgerOwner(Protocol):
    """Who hears of acks, in order, and of the first failure."""

    def acked(self, ledger: "WrittenLedger", entry: int, group: list[Pending]) -> None: ...
    def ledger_failed(self, ledger: int, error: BaseException | None) -> None: ...


class WrittenLedger:
    """A ledger that is written, and what of it waits for acks."""

    def __init__(self, owner: LedgerOwner, writer: LedgerWriter, builder: EntryBuilder) -> None:
        self._owner = owner
        self.writer = writer
        self.builder = builder
        self.under_way: deque[tuple[int, list[Pending]]] = deque()
        """Entries in order; an entry with a piece of a snapshot alone has no messages."""
        self.has_failed = False
        """It takes nothing more."""
        self._has_refused = False
        """Nothing is sent any more: it would be stored under the number of what was refused."""
        self.is_closed = False
        self.asks_rotation = False
        self.first_ms = 0
        self.last_ms = 0

    def append(self, data: bytes, group: list[Pending]) -> None:
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
