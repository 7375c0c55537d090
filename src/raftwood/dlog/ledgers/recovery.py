"""`recover`: closes a ledger whose writer is gone, behind all entries that were acked.

The steps are BookKeeper's, and their order carries the proof. First the metadata are marked: from
then on the old writer cannot move to bookies that the recovery does not know. Then bookies are
fenced: it cannot be acked by those that it has. Then the entries behind the last confirmed one are
read and stored again on a whole write quorum; at last the metadata say where the ledger ends. Any
number of recoveries may run at once or die half-way: the entries that they store are the writer's
own, and one compare-and-set decides.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from raftwood.base.errors import Conflict, PermissionDenied, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.dlog.errors import BadDigest, CannotRecover, NoSuchEntry, NoSuchLedger
from raftwood.dlog.ledgers.context import ClientContext, ask_all
from raftwood.dlog.ledgers.digests import ANY_ENTRY, EntryDigest, master_key
from raftwood.dlog.ledgers.metadata import (
    BookieId,
    Segment,
    closed_by_recovery,
    marked,
    with_segment,
)
from raftwood.dlog.ledgers.reader import RangeRead
from raftwood.dlog.ledgers.rules import FenceRound, RecoveredEntry, RecoveryRound, WriteRules
from raftwood.dlog.ledgers.seams import VersionedMetadata
from raftwood.dlog.ledgers.writer import LedgerAdder


async def recover(
    context: ClientContext, ledger: int, known: VersionedMetadata
) -> VersionedMetadata:
    """The ledger's metadata once it is closed, by this recovery or by another one.

    `CannotRecover` while too few bookies answer: nothing is lost, and anybody may try again. An
    answer that guesses would lose what the bookies that are away have acked.
    """
    for _ in range(context.settings.metadata_tries):
        known = await context.update(ledger, known, marked)
        if known.metadata.is_closed:
            return known
        try:
            return await _Recovery(context, ledger, known).run()
        except Conflict:
            known = await context.get(ledger)
    raise CannotRecover(f"ledger {ledger}: its metadata change all the time: try again")


class _AddingAgain(LedgerAdder[WriteRules]):
    """Stores entries that were found on a whole write quorum.

    An entry may be on one bookie alone, since its writer died before the others had it. If the
    ledger were closed behind it as it is, the loss of that bookie would be the loss of an entry
    that readers see. A bookie that fails meanwhile is replaced in memory, and the close of the
    ledger names its successor (planted bugs "a recovery closes before its adds are acked" and "a
    recovery tells nobody of its ensembles").
    """

    def __init__(
        self, context: ClientContext, ledger: int, known: VersionedMetadata, last_confirmed: int
    ) -> None:
        super().__init__(
            context,
            WriteRules,
            ledger=ledger,
            config=known.metadata.config,
            ensemble=known.metadata.segments[-1].bookies,
            last_confirmed=last_confirmed,
            is_recovery=True,
        )
        self.segments: tuple[Segment, ...] = known.metadata.segments
        self.progressed = asyncio.Event()

    @property
    def error(self) -> RaftwoodError | None:
        return self._error

    @property
    def under_way(self) -> int:
        return len(self._writing.pending)

    @property
    def last_confirmed(self) -> int:
        return self._writing.last_confirmed

    @property
    def length_bytes(self) -> int:
        return self._writing.confirmed_bytes

    def add(self, found: RecoveredEntry) -> None:
        """Adds an entry as its writer packed it: two recoveries then store the same bytes."""
        self._add((found.packed,), len(found.packed), found.unpacked.length_bytes, None)

    def _confirmed(self) -> None:
        self.progressed.set()

    async def _persist(
        self,
        *,
        before: tuple[BookieId, ...],  # noqa: ARG002
        first: int,
        after: tuple[BookieId, ...],
    ) -> None:
        self.segments = with_segment(self.segments, first, after)

    async def stop(self) -> None:
        self._give_up(CannotRecover(f"ledger {self._ledger}: its recovery has ended"))
        await self._stop()


class _Recovery:
    """One attempt, on the segments that were there when the ledger was marked."""

    def __init__(self, context: ClientContext, ledger: int, known: VersionedMetadata) -> None:
        self._context = context
        self._ledger = ledger
        self._known = known
        self._config = known.metadata.config
        self._last = known.metadata.segments[-1]
        self._digest = EntryDigest(ledger, self._config.digest, self._config.password)
        self._fence_key = master_key(self._config.password)
        self._tasks: dict[int, list[asyncio.Task[None]]] = {}
        self._denied: PermissionDenied | None = None

    async def run(self) -> VersionedMetadata:
        last_confirmed = await self._fence()
        adding = _AddingAgain(self._context, self._ledger, self._known, last_confirmed)
        try:
            await self._find(adding, first=last_confirmed + 1)
            last_entry, segments = adding.last_confirmed, adding.segments
            length_bytes = adding.length_bytes
        finally:
            await adding.stop()
            await self._stop_reading()
        if last_entry == last_confirmed:
            length_bytes = await self._length_up_to(last_entry)
        found = self._known.metadata
        return await self._context.update(
            self._ledger,
            self._known,
            lambda metadata: closed_by_recovery(
                metadata,
                found=found,
                segments=segments,
                last_entry=last_entry,
                length_bytes=length_bytes,
            ),
        )

    async def _fence(self) -> int:
        """Keeps the writer from acking; returns the highest entry that is known to be confirmed."""
        fencing = FenceRound(self._config, first=self._last.first)

        def answered(place: int, packed: Buffer) -> bool:
            try:
                fencing.fenced(place, self._digest.unpack(packed).last_confirmed)
            except BadDigest:
                # A damaged entry says nothing of what is confirmed; but the bookie has answered,
                # and it fences before it reads.
                fencing.fenced(place, -1)
            return fencing.is_done

        def failed(place: int, error: RaftwoodError) -> bool:
            if isinstance(error, NoSuchEntry | NoSuchLedger | BadDigest):
                fencing.fenced(place, -1)
            else:
                self._note(error)
                fencing.failed(place)
            return fencing.is_done or fencing.is_lost or self._denied is not None

        await ask_all(
            {
                place: self._read(bookie, ANY_ENTRY)
                for place, bookie in enumerate(self._last.bookies)
            },
            answered=answered,
            failed=failed,
            timeout_ms=self._context.settings.read_timeout_ms,
        )
        if self._denied is not None:
            raise self._denied
        if not fencing.is_done:
            raise CannotRecover(
                f"ledger {self._ledger}: too few bookies of {', '.join(self._last.bookies)} answer "
                "to keep its writer out: try again when more do"
            )
        return fencing.last_confirmed

    def _note(self, error: RaftwoodError) -> None:
        if isinstance(error, PermissionDenied):
            self._denied = error

    def _read(self, bookie: BookieId, entry: int) -> Coroutine[Any, Any, Buffer]:
        return self._context.bookies.read(
            bookie, ledger=self._ledger, entry=entry, fence_key=self._fence_key
        )

    async def _find(self, adding: _AddingAgain, *, first: int) -> None:
        window = self._context.settings.read_window
        finding = RecoveryRound(self._config, first=first, window=window)
        while True:
            adding.progressed.clear()
            while adding.under_way < window and (found := finding.next_found()) is not None:
                adding.add(found)
                self._cancel(found.entry)
            while adding.under_way < window and (entry := finding.next_read()) is not None:
                self._tasks[entry] = [
                    asyncio.create_task(self._ask(finding, adding.progressed, place, entry))
                    for place in self._config.places(entry)
                ]
            # Before the end is looked at: after giving up nothing is under way either, and entries
            # that were found and could not be stored would be cut off
            # (`test_a_recovery_that_cannot_store_what_it_found_does_not_close_the_ledger`).
            if adding.error is not None:
                raise CannotRecover(
                    f"ledger {self._ledger}: {adding.error.message}"
                ) from adding.error
            if finding.undecidable is not None:
                raise CannotRecover(
                    f"ledger {self._ledger}: too few bookies answer to tell whether there is an "
                    f"entry {finding.undecidable}: try again when more do"
                )
            if finding.is_ended and not adding.under_way:
                return
            await adding.progressed.wait()

    async def _ask(
        self, finding: RecoveryRound, progressed: asyncio.Event, place: int, entry: int
    ) -> None:
        try:
            async with asyncio.timeout(self._context.settings.read_timeout_ms / 1000):
                packed = bytes(await self._read(self._last.bookies[place], entry))
            finding.found(
                place, RecoveredEntry(entry, packed, self._digest.unpack(packed, entry=entry))
            )
        except (NoSuchEntry, NoSuchLedger):
            finding.missing(place, entry)
        except (RaftwoodError, TimeoutError):
            finding.unknown(place, entry)
        progressed.set()

    def _cancel(self, entry: int) -> None:
        for task in self._tasks.pop(entry):
            task.cancel()

    async def _stop_reading(self) -> None:
        tasks = [task for entry in self._tasks.values() for task in entry]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _length_up_to(self, entry: int) -> int:
        """The ledger's length where nothing was found behind the last confirmed entry.

        The entry's own head has it. If it cannot be read now, the ledger stays open: a wrong length
        in the metadata is there for ever.
        """
        if entry < 0:
            return 0
        reading = RangeRead(
            self._context, self._ledger, self._known.metadata, first=entry, last=entry
        )
        try:
            await reading.run()
        except RaftwoodError as error:
            raise CannotRecover(
                f"ledger {self._ledger}: its last entry {entry} cannot be read: {error.message}"
            ) from error
        return reading.entries[entry].length_bytes
