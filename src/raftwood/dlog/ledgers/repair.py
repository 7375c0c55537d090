"""`repair_bookie`: copies what a bookie should hold from others, to it or to another one.

Each ledger is a step of its own: entries are copied, made durable and read back, then the metadata
name the new holder by compare-and-set. A step that fails leaves the metadata as they were; done
again, it finds the entries that were copied before. In the other order a reader or a recovery asks
a bookie that the metadata name and that has nothing, and counts its "no such entry" (planted bug "a
repair names the new holder before it has the entries").
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from raftwood.base.errors import Conflict, Overloaded, RaftwoodError
from raftwood.dlog.errors import (
    BookieUnavailable,
    CannotRepair,
    NoSuchLedger,
    NotEnoughBookies,
)
from raftwood.dlog.ledgers.context import ClientContext
from raftwood.dlog.ledgers.digests import EntryDigest, UnpackedEntry, master_key
from raftwood.dlog.ledgers.metadata import (
    BookieId,
    BookieInfo,
    LedgerMetadata,
    LedgerState,
    Segment,
)
from raftwood.dlog.ledgers.placement import choose_replacements
from raftwood.dlog.ledgers.recovery import recover
from raftwood.dlog.ledgers.rules import (
    BookieShare,
    is_being_written,
    replicas,
    shares_of,
    with_holders,
)
from raftwood.dlog.ledgers.seams import VersionedMetadata

GRACE_MS: Final = 5_000
"""The time for writers to replace the bookie in their open ledgers: twice what they need for it. A
recovery would fence them, which stops their appends for a moment, for nothing
(`test_a_writer_has_time_to_replace_a_bookie_and_is_fenced_only_if_it_can_be_replaced`)."""
LEDGERS_AT_ONCE: Final = 4
_ENTRIES_AT_ONCE: Final = 16
"""Entries of one ledger that are copied at once; one sync of the bookie serves them all."""
_ADD_TRIES: Final = 10


class RepairedLedger(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one ledger."""

    ledger: int
    to: tuple[BookieId, ...] = ()
    """The bookies that have the entries now."""
    copied: int = 0
    """Entries that were copied."""
    copied_bytes: int = 0
    intact: int = 0
    """Entries that were there already."""
    problem: str = ""
    """Why the ledger could not be repaired, and was left as it is; empty: it is repaired."""


class _Unsettled(Exception):
    """The writer of an open ledger still has time to replace the bookie by itself."""


async def repair_bookie(
    context: ClientContext,
    bookie: BookieId,
    *,
    to: BookieId | None = None,
    grace_ms: int = 0,
    told: Callable[[RepairedLedger], None] = lambda _: None,
) -> list[RepairedLedger]:
    """Repairs every ledger that names a bookie; calls `told` with each result.

    A bookie that runs gets its own entries back; else, or with `to`, others get its place. Writers
    of open ledgers have `grace_ms` to replace it, then their ledgers are recovered first. Ledgers
    that were made after a bookie began anew are left alone if it stays in them.
    """
    repair = _Repair(context, bookie, to)
    await repair.begin()
    # Ledgers that are made after this list need none of the entries that the bookie lost.
    ledgers = [each async for each in context.metadata.ledgers() if not repair.is_whole(each)]
    results: list[RepairedLedger] = []
    began = asyncio.get_running_loop().time()
    unsettled = await _each(ledgers, repair, results, told, may_fence=not grace_ms)
    if unsettled:
        left_s = began + grace_ms / 1000 - asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, left_s))
        await _each(unsettled, repair, results, told, may_fence=True)
    return sorted(results, key=lambda each: each.ledger)


async def _each(
    ledgers: Sequence[int],
    repair: "_Repair",
    results: list[RepairedLedger],
    told: Callable[[RepairedLedger], None],
    *,
    may_fence: bool,
) -> list[int]:
    """Repairs ledgers, a few at a time; returns those whose writers still have time."""
    unsettled: list[int] = []
    left = iter(ledgers)

    async def work() -> None:
        for ledger in left:
            try:
                result = await repair.ledger(ledger, may_fence=may_fence)
            except _Unsettled:
                unsettled.append(ledger)
            except NoSuchLedger:
                continue  # It was deleted meanwhile.
            except RaftwoodError as error:
                result = RepairedLedger(ledger=ledger, problem=error.message)
                results.append(result)
                told(result)
            else:
                if result is not None:
                    results.append(result)
                    told(result)

    async with asyncio.TaskGroup() as group:
        for _ in range(LEDGERS_AT_ONCE):
            group.create_task(work())
    return unsettled


class _Repair:
    """The repair of one bookie over all ledgers."""

    def __init__(self, context: ClientContext, bookie: BookieId, to: BookieId | None) -> None:
        self._context = context
        self._bookie = bookie
        self._to = to
        self._running: list[BookieInfo] = []
        self._whole_from: int | None = None

    async def begin(self) -> None:
        """Finds the running bookies; `NotEnoughBookies` where the one to copy to is not among
        them."""
        context = self._context
        self._running = await context.patiently(context.metadata.bookies)
        if self._to is not None and self._to not in {each.id for each in self._running}:
            raise NotEnoughBookies(f"bookie {self._to} does not run: start it, or leave out --to")
        if self._to is None and self._takes_entries():
            beginning = await context.patiently(lambda: context.metadata.beginning(self._bookie))
            self._whole_from = beginning.limbo_end

    def is_whole(self, ledger: int) -> bool:
        """Whether the bookie stays in a ledger, and has all that it acked of it."""
        return self._whole_from is not None and ledger >= self._whole_from

    def _takes_entries(self) -> bool:
        return any(each.id == self._bookie and not each.is_read_only for each in self._running)

    async def ledger(self, ledger: int, *, may_fence: bool) -> RepairedLedger | None:
        """Repairs one ledger; None if it does not name the bookie."""
        context = self._context
        for _ in range(context.settings.metadata_tries):
            known = await context.get(ledger)
            if known.metadata.state is LedgerState.IN_RECOVERY:
                # A recovery names the bookies that it stored entries on only when it closes the
                # ledger. It may have stored some on this bookie before they were lost there: the
                # ledger does not name the bookie yet, and will (docs/decisions/0032).
                known = await recover(context, ledger, known)
            elif is_being_written(known.metadata, self._bookie):
                # This fails where no bookie can take the place: a writer is not fenced for a repair
                # that cannot be done.
                self._holder(ledger, known.metadata.segments[-1])
                if not may_fence:
                    raise _Unsettled
                known = await recover(context, ledger, known)
            shares = shares_of(known.metadata, self._bookie)
            if not shares:
                return None
            try:
                return await self._shares(ledger, known, shares)
            except Conflict:
                continue  # The writer, a recovery or another repair was faster.
        raise CannotRepair(f"ledger {ledger}: its metadata change all the time: repair it again")

    async def _shares(
        self, ledger: int, known: VersionedMetadata, shares: Sequence[BookieShare]
    ) -> RepairedLedger:
        found, bookie = known.metadata, self._bookie
        holders = {
            each.segment: self._holder(ledger, found.segments[each.segment]) for each in shares
        }
        others = {segment: holder for segment, holder in holders.items() if holder != bookie}
        instances = await self._instances(others.values())
        copied = copied_bytes = intact = 0
        for share in shares:
            copy = _Copy(self._context, ledger, found, bookie=bookie, to=holders[share.segment])
            await copy.run(share)
            copied += copy.copied
            copied_bytes += copy.copied_bytes
            intact += copy.intact
        if others:
            # A holder that was started with an empty folder during the copy has lost what it was
            # given, and would be named without the entries
            # (`test_a_holder_that_begins_anew_during_the_copy_is_not_named_without_the_entries`).
            if await self._instances(others.values()) != instances:
                raise Conflict(
                    f"ledger {ledger}: a bookie began anew while entries were copied to it: repair "
                    "it again"
                )
            await self._context.update(
                ledger,
                known,
                lambda metadata: with_holders(metadata, found=found, bookie=bookie, holders=others),
            )
        return RepairedLedger(
            ledger=ledger,
            to=tuple(dict.fromkeys(holders.values())),
            copied=copied,
            copied_bytes=copied_bytes,
            intact=intact,
        )

    async def _instances(self, bookies: Iterable[BookieId]) -> dict[BookieId, str]:
        """The data folders of some bookies: a bookie with another folder has other entries."""
        context = self._context
        found: dict[BookieId, str] = {}
        for bookie in dict.fromkeys(bookies):
            beginning = await context.patiently(partial(context.metadata.beginning, bookie))
            found[bookie] = beginning.instance
        return found

    def _holder(self, ledger: int, segment: Segment) -> BookieId:
        """The bookie that gets the entries: `to`, else the bookie itself if it runs, else another.

        One that has a copy of the same entries already is refused: two copies on one bookie are
        one.
        """
        bookie = self._bookie
        if self._to is not None:
            if self._to in segment.bookies and self._to != bookie:
                raise NotEnoughBookies(
                    f"ledger {ledger}: bookie {self._to} has a copy of the same entries already: "
                    "give another one with --to"
                )
            return self._to
        if self._takes_entries():
            return bookie
        place = segment.bookies.index(bookie)
        chosen = choose_replacements(
            self._running,
            ensemble=segment.bookies,
            places=(place,),
            may_return=False,
            chance=self._context.environment.random,
            is_avoided=self._context.quarantine.holds,
        )
        if not chosen:
            raise NotEnoughBookies(
                f"ledger {ledger}: no bookie but {', '.join(segment.bookies)} takes entries: start "
                f"one more, or bookie {bookie} with --begin-anew and a new folder, and repair it "
                "again"
            )
        return chosen[place]


class _Copy:
    """The entries of one ledger, to one bookie; an `AddSink`."""

    def __init__(
        self,
        context: ClientContext,
        ledger: int,
        metadata: LedgerMetadata,
        *,
        bookie: BookieId,
        to: BookieId,
    ) -> None:
        self.copied = self.copied_bytes = self.intact = 0
        self._context = context
        self._ledger = ledger
        self._metadata = metadata
        self._bookie = bookie
        self._to = to
        config = metadata.config
        self._digest = EntryDigest(ledger, config.digest, config.password)
        self._master_key = master_key(config.password)
        self._added: dict[int, asyncio.Future[RaftwoodError | None]] = {}

    async def run(self, share: BookieShare) -> None:
        entries = share.entries(self._metadata.config)
        while batch := list(islice(entries, _ENTRIES_AT_ONCE)):
            outcomes = await asyncio.gather(
                *(self._copy(entry) for entry in batch), return_exceptions=True
            )
            for outcome in outcomes:
                if outcome is not None:
                    raise outcome

    async def _copy(self, entry: int) -> None:
        try:
            await self._read(self._to, entry)
        except RaftwoodError:
            pass  # Missing, damaged or unknown: it is copied. If the bookie is away, the add fails.
        else:
            self.intact += 1
            return
        unpacked = await self._found(entry)
        await self._add(entry, unpacked)
        # Read back: a bookie acks an entry that it has already without a look at it, and its copy
        # may be the damaged one that this repair was called for.
        try:
            stored = await self._read(self._to, entry)
        except RaftwoodError as error:
            raise CannotRepair(
                f"ledger {self._ledger}: bookie {self._to} keeps no intact copy of entry {entry} "
                f"({error.message}): copy to another one, --to"
            ) from error
        if stored != unpacked:
            raise CannotRepair(
                f"ledger {self._ledger}: bookie {self._to} has another entry {entry} than other "
                "bookies: nothing of the ledger was changed"
            )
        self.copied += 1
        self.copied_bytes += len(unpacked.data)

    async def _read(self, bookie: BookieId, entry: int) -> UnpackedEntry:
        packed = await self._context.bookies.read(bookie, ledger=self._ledger, entry=entry)
        return self._digest.unpack(packed, entry=entry)

    async def _found(self, entry: int) -> UnpackedEntry:
        """An intact copy from any holder; the bookie that is repaired is asked last."""
        quarantine = self._context.quarantine
        holders = replicas(self._metadata, entry, is_avoided=quarantine.holds)
        reasons: list[str] = []
        for holder in sorted(holders, key=self._bookie.__eq__):
            try:
                return await self._read(holder, entry)
            except RaftwoodError as error:
                if isinstance(error, BookieUnavailable):
                    quarantine.add(holder)
                reasons.append(f"{holder}: {error.message}")
        raise CannotRepair(
            f"ledger {self._ledger}: no intact copy of entry {entry} can be read now, and nothing "
            "of the ledger was changed. Start the bookies that are away, and repair it again "
            f"({'; '.join(reasons)})"
        )

    async def _add(self, entry: int, unpacked: UnpackedEntry) -> None:
        """Stores an entry as the writer packed it; durable when it returns."""
        bookies, loop = self._context.bookies, asyncio.get_running_loop()
        packed = self._digest.pack(
            entry=entry,
            last_confirmed=unpacked.last_confirmed,
            length_bytes=unpacked.length_bytes,
            data=unpacked.data,
        )
        request = bookies.prepare_add(
            ledger=self._ledger,
            entry=entry,
            packed=packed,
            master_key=self._master_key,
            is_recovery=True,
        )
        for _ in range(_ADD_TRIES):
            self._added[entry] = answer = loop.create_future()
            bookies.add(self._to, request, self)
            error = await answer
            if error is None:
                return
            if not isinstance(error, Overloaded):
                raise CannotRepair(
                    f"ledger {self._ledger}: bookie {self._to} does not take entry {entry}: "
                    f"{error.message}"
                ) from error
            await asyncio.sleep(self._context.settings.overload_pause_ms / 1000)
        raise CannotRepair(f"ledger {self._ledger}: bookie {self._to} is overloaded: try later")

    def added(self, entry: int, bookie: BookieId, error: RaftwoodError | None) -> None:  # noqa: ARG002
        waiting = self._added.pop(entry)
        if not waiting.done():
            waiting.set_result(error)
