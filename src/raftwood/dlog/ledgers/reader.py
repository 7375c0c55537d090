"""`QuorumReader`: reads a ledger, open or closed, from its replicas.

A reader never returns an entry above the last confirmed one, though bookies do serve such entries:
the writer may not have acked it, and a recovery may end the ledger in front of it. What was read
once would then be gone (planted bug "readers take all entries for confirmed").

`RangeRead` reads a range of entries, several at once, and speculatively: it does not wait for a
replica that fails, has a damaged copy or is slow, but asks the next one. A bookie that is stopped
and keeps its connections would otherwise cost a timeout for each entry
(`test_one_bookie_that_hangs_blocks_neither_appends_nor_reads_nor_recovery`). One timer watches the
whole range.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from raftwood.base.errors import OutOfRange, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.base.futures import fail
from raftwood.dlog.errors import BookieUnavailable, NoSuchEntry, NoSuchLedger
from raftwood.dlog.ledgers.context import ClientContext, ask_all
from raftwood.dlog.ledgers.digests import EntryDigest, UnpackedEntry
from raftwood.dlog.ledgers.metadata import BookieId, LedgerMetadata
from raftwood.dlog.ledgers.rules import EntryRead, is_covered, replicas
from raftwood.dlog.ledgers.seams import LedgerEntry, VersionedMetadata


class RangeRead:
    """One read of a range of entries."""

    def __init__(
        self,
        context: ClientContext,
        ledger: int,
        metadata: LedgerMetadata,
        *,
        first: int,
        last: int,
    ) -> None:
        self.entries: dict[int, UnpackedEntry] = {}
        """The entries that were read, even if others failed."""
        self._context = context
        self._ledger = ledger
        self._metadata = metadata
        self._digest = EntryDigest(ledger, metadata.config.digest, metadata.config.password)
        self._loop = asyncio.get_running_loop()
        self._next = first
        self._last = last
        self._readings: dict[int, tuple[EntryRead, float]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Runs until all entries are read, or one cannot be."""
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
            reading = EntryRead(self._next, holders)
            self._readings[self._next] = (reading, self._loop.time())
            self._next += 1
            self._ask(reading)
        if not self._readings and not self._done.done():
            self._done.set_result(None)

    def _ask(self, reading: EntryRead) -> bool:
        bookie = reading.ask_next()
        if bookie is None:
            return False
        task = self._loop.create_task(self._attempt(reading, bookie))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return True

    async def _attempt(self, reading: EntryRead, bookie: BookieId) -> None:
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


_POLLED_MAX = 3
"""How many bookies are polled for new entries."""
_POLL_MS_MAX = 5_000
_PAUSE_MS = 50
"""The pause after all polled bookies failed."""
_READ_TRIES = 3


class QuorumReader:
    """A `LedgerReader` over bookies."""

    def __init__(self, context: ClientContext, ledger: int, known: VersionedMetadata) -> None:
        self._context = context
        self._ledger = ledger
        self._known = known
        config = known.metadata.config
        self._digest = EntryDigest(ledger, config.digest, config.password)
        self._last_confirmed = -1
        self._length_bytes = 0
        self._problem = ""
        """The message of the last bookie that failed."""
        self._know(known)

    @property
    def ledger(self) -> int:
        return self._ledger

    @property
    def is_closed(self) -> bool:
        return self._known.metadata.is_closed

    @property
    def last_confirmed(self) -> int:
        return self._last_confirmed

    @property
    def length_bytes(self) -> int:
        return self._length_bytes

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as this reader last saw them."""
        return self._known.metadata

    def _know(self, known: VersionedMetadata) -> None:
        self._known = known
        metadata = known.metadata
        if metadata.is_closed:
            self._last_confirmed = metadata.last_entry
            self._length_bytes = metadata.length_bytes
        else:
            # A segment begins behind the last confirmed entry: after a change of the ensemble the
            # new bookies may know of no entry yet.
            self.confirm(metadata.segments[-1].first - 1)

    def confirm(self, entry: int) -> None:
        if entry > self._last_confirmed and not self.is_closed:
            self._last_confirmed = entry

    async def read(self, *, first: int, last: int) -> list[LedgerEntry]:
        if not 0 <= first <= last <= self._last_confirmed:
            raise OutOfRange(
                f"ledger {self._ledger} can be read up to entry {self._last_confirmed}: {first} to "
                f"{last} is not within"
            )
        entries: list[LedgerEntry] = []
        for tries_left in reversed(range(_READ_TRIES)):
            reading = RangeRead(
                self._context,
                self._ledger,
                self._known.metadata,
                first=first + len(entries),
                last=last,
            )
            try:
                await reading.run()
            except RaftwoodError:
                # A repair may have moved the entries to other bookies, or the ledger was deleted.
                if not await self._refresh() or not tries_left:
                    raise
            for entry in range(first + len(entries), last + 1):
                unpacked = reading.entries.get(entry)
                if unpacked is None:
                    break
                self.confirm(unpacked.last_confirmed)
                entries.append(LedgerEntry(entry, unpacked.data))
            if len(entries) == last - first + 1:
                break
        return entries

    async def _refresh(self) -> bool:
        """Reads the metadata again; returns whether they changed; `NoSuchLedger` if gone."""
        before = self._known.version
        self._know(await self._context.get(self._ledger))
        return self._known.version != before

    async def look(self) -> bool:
        """Asks how far an open ledger is confirmed; returns whether that is all that was acked.

        It is if some bookie of every ack quorum answers, since an ack waits until an ack quorum has
        heard of it (docs/decisions/0031). A reader that asks one bookie may meet the one that the
        publication did not reach (planted bug "a reader asks one bookie").
        """
        if self.is_closed:
            return True
        config = self._known.metadata.config
        heard = 0

        def answered(place: int, answer: tuple[int, Buffer]) -> bool:
            nonlocal heard
            published, packed = answer
            self.confirm(published)
            if len(packed):
                try:
                    unpacked = self._digest.unpack(packed)
                except RaftwoodError as error:
                    return failed(place, error)
                self.confirm(unpacked.last_confirmed)
                self._length_bytes = max(self._length_bytes, unpacked.length_bytes)
            heard |= 1 << place
            return is_covered(config, heard)

        def failed(place: int, error: RaftwoodError) -> bool:
            nonlocal heard
            self._problem = error.message
            # An open ledger without entries: our bookies do not know it, BookKeeper's have no
            # entry.
            if isinstance(error, NoSuchLedger | NoSuchEntry):
                heard |= 1 << place
            return is_covered(config, heard)

        await ask_all(
            {
                place: self._context.bookies.read_last_confirmed(bookie, ledger=self._ledger)
                for place, bookie in enumerate(self._known.metadata.segments[-1].bookies)
            },
            answered=answered,
            failed=failed,
            timeout_ms=self._context.settings.read_timeout_ms,
        )
        return is_covered(config, heard)

    async def wait(self, *, after: int, timeout_ms: int) -> tuple[int, bool]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while not self.is_closed and self._last_confirmed <= after:
            left_s = deadline - loop.time()
            if left_s <= 0:
                break
            # A caller that waits again for the rest of a millisecond would never let others run.
            left_ms = max(1, int(left_s * 1000))
            if not await self._poll(after, min(left_ms, _POLL_MS_MAX)):
                await asyncio.sleep(min(left_ms, _PAUSE_MS) / 1000)
        if not self.is_closed and (timeout_ms <= 0 or self._last_confirmed <= after):
            # One bookie that knows more is enough for news; that there is nothing more, only
            # enough bookies can say. A tail that believed one of them would stand still in front of
            # entries that were acked
            # (`test_that_there_is_nothing_more_to_read_is_said_by_enough_bookies_or_not_at_all`).
            await self._refresh()
            if not await self.look() and self._last_confirmed <= after:
                bookies = ", ".join(self._known.metadata.segments[-1].bookies)
                raise BookieUnavailable(
                    f"ledger {self._ledger}: too few bookies of {bookies} say how far it is "
                    f"confirmed ({self._problem}): try again when more do"
                )
        return self._last_confirmed, self.is_closed

    async def _poll(self, after: int, timeout_ms: int) -> bool:
        """Waits until a bookie reports news, or the time is over; false if no bookie answers."""
        changed = BookieId("")
        failures = 0

        def answered(who: BookieId, last_confirmed: int) -> bool:
            if who != changed:
                self.confirm(last_confirmed)
            return who == changed or self._last_confirmed > after

        def failed(who: BookieId, _: RaftwoodError) -> bool:
            nonlocal failures
            failures += 1
            return who == changed or failures == len(polled)

        async def metadata_changed() -> int:
            await self._context.metadata.wait_changed(
                self._ledger, version=self._known.version, timeout_ms=timeout_ms
            )
            return -1

        holders = self._known.metadata.segments[-1].bookies
        polled = sorted(holders, key=self._context.quarantine.holds)[:_POLLED_MAX]
        questions: dict[BookieId, Coroutine[Any, Any, int]] = {
            bookie: self._context.bookies.wait_last_confirmed(
                bookie, ledger=self._ledger, after=after, timeout_ms=timeout_ms
            )
            for bookie in polled
        }
        questions[changed] = metadata_changed()
        await ask_all(
            questions,
            answered=answered,
            failed=failed,
            timeout_ms=timeout_ms + self._context.settings.read_timeout_ms,
        )
        if self._last_confirmed <= after:
            await self._refresh()
        return failures < len(polled)

    async def close(self) -> None:
        """Does nothing: the reader holds no resources between calls."""
