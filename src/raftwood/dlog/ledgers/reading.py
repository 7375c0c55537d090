"""`RangeReading`: reads a range of entries from replicas, several at once, and speculatively.

A replica that fails, has a damaged copy or takes long is not waited for: the next one is asked.
One timer watches the whole range.
"""

import asyncio
from collections.abc import Callable

from raftwood.base.errors import RaftwoodError
from raftwood.base.futures import fail
from raftwood.dlog.errors import BookieUnavailable
from raftwood.dlog.ledgers.context import ClientContext
from raftwood.dlog.ledgers.digests import EntryDigest, Unpacked
from raftwood.dlog.ledgers.model import BookieId, LedgerMetadata
from raftwood.dlog.ledgers.rules.reading import EntryReading, replicas


class RangeReading:
    """One range, once."""

    def __init__(
        self,
        context: ClientContext,
        ledger: int,
        metadata: LedgerMetadata,
        *,
        first: int,
        last: int,
    ) -> None:
        self.entries: dict[int, Unpacked] = {}
        """Those that were read, also where others failed."""
        self._context = context
        self._ledger = ledger
        self._metadata = metadata
        self._digest = EntryDigest(ledger, metadata.config.digest, metadata.config.password)
        self._loop = asyncio.get_running_loop()
        self._next = first
        self._last = last
        self._readings: dict[int, tuple[EntryReading, float]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Until all are read, or one cannot be."""
        try:
            self._go_on()
            self._watch()
            await self._done
        finally:
            if self._timer is not None:
                self._timer.cancel()
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _go_on(self) -> None:
        is_avoided: Callable[[BookieId], bool] = self._context.quarantine.holds
        while self._next <= self._last and len(self._readings) < self._context.settings.read_window:
            holders = replicas(self._metadata, self._next, is_avoided=is_avoided)
            reading = EntryReading(self._next, holders)
            self._readings[self._next] = (reading, self._loop.time())
            self._next += 1
            self._ask(reading)
        if not self._readings and not self._done.done():
            self._done.set_result(None)

    def _ask(self, reading: EntryReading) -> bool:
        bookie = reading.ask_next()
        if bookie is None:
            return False
        task = self._loop.create_task(self._attempt(reading, bookie))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return True

    async def _attempt(self, reading: EntryReading, bookie: BookieId) -> None:
        entry = reading.entry
        try:
            packed = await self._context.bookies.read(bookie, ledger=self._ledger, entry=entry)
            unpacked = self._digest.unpack(packed, entry=entry)
        except RaftwoodError as error:
            if isinstance(error, BookieUnavailable):
                self._context.quarantine.add(bookie)
            reading.failed(error)
            if entry in self._readings and not self._ask(reading) and not reading.under_way:
                self._fail(reading.error)
        else:
            if self._readings.pop(entry, None) is not None:
                self.entries[entry] = unpacked
                self._go_on()

    def _watch(self) -> None:
        settings = self._context.settings
        now = self._loop.time()
        for reading, begun in list(self._readings.values()):
            waited_ms = (now - begun) * 1000
            if waited_ms >= settings.speculative_read_ms:
                self._ask(reading)
            if waited_ms >= settings.read_timeout_ms:
                self._fail(
                    BookieUnavailable(
                        f"ledger {self._ledger}, entry {reading.entry}: no bookie that has it "
                        f"answered in {settings.read_timeout_ms} ms"
                    )
                )
        self._timer = self._loop.call_later(settings.speculative_read_ms / 1000, self._watch)

    def _fail(self, error: RaftwoodError) -> None:
        fail(self._done, error)
