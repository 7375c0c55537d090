"""`LogReader`: reads a log from any position, across its ledgers, up to the last confirmed entry.

All readers of a process share an `EntryCache`, bounded in bytes.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Final, TypeAlias

import msgspec

from raftwood.base.caches import LruCache
from raftwood.base.errors import OutOfRange
from raftwood.base.position import Position, entry_of_position, position_of_entry
from raftwood.dlog.errors import NoSuchLedger
from raftwood.dlog.ledgers.seams import LedgerReader
from raftwood.dlog.log.entries import DecodedEntry, DlogMessage, decode_entry
from raftwood.dlog.log.ledger_source import LedgerSource, read_head
from raftwood.dlog.log.meta import KnownMeta, LedgerInfo, MetaCache
from raftwood.dlog.settings import DlogSettings

EntryCache: TypeAlias = LruCache[tuple[int, int], DecodedEntry]
"""Keyed by ledger and entry. An entry never changes, and a ledger's id is never reused."""
_CACHED_ENTRY_BYTES: Final = 200
"""An entry's memory beside its body."""
_OPENED_MAX: Final = 4
_FETCHED_ENTRIES_MAX: Final = 256
_BYTES_MAX: Final = 64 << 20
_STEP_MS: Final = 30_000
"""How long one step of a tail waits."""


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message, its position, and when it was appended."""

    position: Position
    time_ms: int
    message: DlogMessage


class StoredEntry(msgspec.Struct, frozen=True):
    """An entry, and the index of the first message to use."""

    position: Position
    """The position of its first message."""
    entry: DecodedEntry
    skipped: int = 0


class LogReader:
    """Reads a log. Made by `Dlogs.open_reader`; close it when done."""

    def __init__(
        self,
        name: str,
        *,
        metas: MetaCache,
        source: LedgerSource,
        cache: EntryCache,
        settings: DlogSettings,
    ) -> None:
        self.name = name
        self._metas = metas
        self._source = source
        self._cache = cache
        self._settings = settings
        self._opened: LruCache[int, LedgerReader] = LruCache(_OPENED_MAX)
        self._confirmed = Position(0)

    def confirm(self, end: Position) -> None:
        """Notes the end that the log's writer reports: all before it can be read at once."""
        self._confirmed = max(self._confirmed, end)

    async def read(
        self, start: Position, *, bytes_max: int, wait_ms: int = 0
    ) -> tuple[list[StoredMessage], Position]:
        """Returns messages from `start` on, one at least if there is any, and where to go on."""
        entries, following = await self.read_entries(start, bytes_max=bytes_max, wait_ms=wait_ms)
        found: list[StoredMessage] = []
        size = 0
        for each in entries:
            time_ms = each.entry.head.time_ms
            for index in range(each.skipped, len(each.entry)):
                data = each.entry.raw(index)
                size += len(data)
                if found and size > bytes_max:
                    return found, Position(each.position + index)
                found.append(
                    StoredMessage(
                        Position(each.position + index), time_ms, each.entry.message(index)
                    )
                )
        return found, following

    async def read_entries(
        self, start: Position, *, bytes_max: int, wait_ms: int = 0, end: Position | None = None
    ) -> tuple[list[StoredEntry], Position]:
        """Like `read`, but returns whole entries of about `bytes_max` in all. Does not look behind
        `end`, if the caller knows that nothing is there yet.
        """
        deadline_s = asyncio.get_running_loop().time() + wait_ms / 1000
        bytes_max = min(bytes_max, _BYTES_MAX)
        has_opened_anew = False
        while end is None or start < end:
            known = await self._metas.get(self.name)
            if end is not None and known.meta.last_ledger < end >> 64:
                known = await self._metas.read(self.name)
            self._check_not_shrunk(start, known)
            info = next((i for i in known.meta.ledgers if i.ledger >= start >> 64), None)
            try:
                if info is None:
                    start, is_over = await self._at_the_end(start, known, deadline_s)
                else:
                    if info.ledger > start >> 64:
                        start = position_of_entry(ledger=info.ledger, entry=0)
                        continue  # this may be the end
                    entries, following, is_closed = await self._read_ledger(
                        start, known, info, bytes_max, deadline_s
                    )
                    if entries:
                        return entries, following
                    start, is_over = following, not is_closed and _is_over(deadline_s)
                    if is_closed and (end is None or start < end):
                        start, is_over = await self._behind(start, info, known, deadline_s)
            except NoSuchLedger:
                # The ledger was freed, or offloaded since it was opened; the record may say so.
                opened = None if info is None else self._opened.pop(info.ledger)
                if opened is not None:
                    await opened.close()
                fresh = await self._metas.read(self.name)
                if fresh.version == known.version and (opened is None or has_opened_anew):
                    raise
                has_opened_anew = fresh.version == known.version
                continue
            if is_over:
                break
        return [], start

    def _check_not_shrunk(self, start: Position, known: KnownMeta) -> None:
        if start < known.meta.first:
            raise OutOfRange(
                f"log {self.name!r}: position {start} was freed, the first one is "
                f"{known.meta.first}"
            )

    async def _behind(
        self, start: Position, info: LedgerInfo, known: KnownMeta, deadline_s: float
    ) -> tuple[Position, bool]:
        """After the end of a closed ledger: returns where its successor begins, if there is one."""
        if info.ledger == known.meta.last_ledger and not known.meta.is_terminated:
            known = await self._metas.read(self.name)
        successor = next((each for each in known.meta.ledgers if each.ledger > info.ledger), None)
        if successor is not None:
            return position_of_entry(ledger=successor.ledger, entry=0), False
        return await self._at_the_end(start, known, deadline_s)

    async def _at_the_end(
        self, start: Position, known: KnownMeta, deadline_s: float
    ) -> tuple[Position, bool]:
        """Waits for the next writer: no ledger is open at the end of the log."""
        fresh = await self._metas.read(self.name)
        if fresh.version != known.version:
            return start, False  # There may be a ledger by now.
        end = known.meta.ledgers[-1].end if known.meta.ledgers else known.meta.first
        if start > end and (not known.meta.ledgers or known.meta.ledgers[-1].is_closed):
            raise OutOfRange(f"log {self.name!r}: position {start} is behind its end, {end}")
        left_s = deadline_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            return start, True
        if known.meta.is_terminated:
            return start, True
        await self._metas.wait_changed(self.name, version=known.version, timeout_s=left_s)
        self._metas.forget(self.name)
        return start, _is_over(deadline_s)

    async def _read_ledger(
        self,
        start: Position,
        known: KnownMeta,
        info: LedgerInfo,
        bytes_max: int,
        deadline_s: float,
    ) -> tuple[list[StoredEntry], Position, bool]:
        """Returns entries, where to go on, and whether the ledger ends there."""
        ledger, entry, batch = entry_of_position(start)
        reader = await self._open(known, info)
        last, is_closed = reader.last_confirmed, reader.is_closed
        if entry > last and not is_closed:
            last, is_closed = await reader.wait(after=entry - 1, timeout_ms=_left_ms(deadline_s))
        is_behind = entry > last + 1 or (entry == last + 1 and batch > 0)
        if is_behind and is_closed and info.ledger != known.meta.last_ledger:
            return [], start, True  # in the gap before the next ledger
        if is_behind and not is_closed:
            return [], start, False  # perhaps acked, and not yet visible to readers
        if is_behind:
            raise OutOfRange(
                f"log {self.name!r}: position {start} is behind the last entry, {last} of ledger "
                f"{ledger}"
            )
        found: list[StoredEntry] = []
        size = 0
        while entry <= last and (not found or size < bytes_max):
            decoded = await self._entry(reader, entry, last)
            skipped, batch = batch, 0
            if skipped < len(decoded):
                position = position_of_entry(ledger=ledger, entry=entry)
                found.append(StoredEntry(position, decoded, skipped))
                size += len(decoded.body)
            entry += 1
        following = position_of_entry(ledger=ledger, entry=entry)
        return found, max(start, following), is_closed and entry > last

    async def _entry(self, reader: LedgerReader, entry: int, last: int) -> DecodedEntry:
        """Returns an entry from the cache, or reads it with those that follow."""
        ledger = reader.ledger
        decoded = self._cache.get((ledger, entry))
        if decoded is not None:
            return decoded
        average = max(1, reader.length_bytes // (last + 1))
        ahead = max(1, min(self._settings.read_ahead_bytes // average, _FETCHED_ENTRIES_MAX))
        fetched = await reader.read(first=entry, last=min(last, entry + ahead - 1))
        for each in reversed(fetched):
            decoded = decode_entry(each.data)
            # The body may be larger than the fetched bytes.
            size = max(len(each.data), len(decoded.body)) + _CACHED_ENTRY_BYTES
            self._cache.put((ledger, each.id), decoded, size)
        assert decoded is not None
        return decoded

    async def _open(self, known: KnownMeta, info: LedgerInfo) -> LedgerReader:
        reader = self._opened.pop(info.ledger)
        if reader is not None and info.is_closed and not reader.is_closed:
            await reader.close()  # it was opened before the ledger was closed
            reader = None
        if reader is None:
            reader = await self._source.open(known.meta, info)
        displaced = self._opened.put(info.ledger, reader)
        confirmed, entry, _ = entry_of_position(self._confirmed)
        if confirmed == info.ledger and entry - 1 > reader.last_confirmed:
            reader.confirm(entry - 1)
        for each in displaced:
            await each.close()
        return reader

    async def tail(
        self, start: Position, *, bytes_max: int = 1 << 20
    ) -> AsyncIterator[StoredMessage]:
        """Yields all messages from a position on, for ever; ends where the log is terminated."""
        while True:
            messages, following = await self.read(start, bytes_max=bytes_max, wait_ms=_STEP_MS)
            for message in messages:
                yield message
            if not messages and following == start and await self.is_at_end(start):
                return
            start = following

    async def is_at_end(self, position: Position) -> bool:
        """Whether nothing will ever come at or behind a position."""
        meta = (await self._metas.read(self.name)).meta
        if not meta.is_terminated:
            return False
        return position >= (meta.ledgers[-1].end if meta.ledgers else meta.first)

    async def find_time(self, time_ms: int) -> Position:
        """The first message appended at or after a time; else the present end."""
        known = await self._metas.read(self.name)
        meta = known.meta
        for info in meta.ledgers:
            if info.is_closed and (info.last_entry < 0 or info.last_ms < time_ms):
                continue
            reader = await self._open(known, info)
            if not reader.is_closed:
                await reader.wait(after=reader.last_confirmed, timeout_ms=0)
            entry = await self._first_at(reader, time_ms)
            if entry <= reader.last_confirmed or info is meta.ledgers[-1]:
                return max(meta.first, position_of_entry(ledger=info.ledger, entry=entry))
        return max(meta.first, meta.ledgers[-1].end if meta.ledgers else meta.first)

    async def _first_at(self, reader: LedgerReader, time_ms: int) -> int:
        """Finds the entry by bisection: times never go back in a log."""
        low, high = 0, reader.last_confirmed + 1
        while low < high:
            middle = (low + high) // 2
            cached = self._cache.get((reader.ledger, middle))
            head = cached.head if cached is not None else await read_head(reader, middle)
            if head.time_ms < time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    async def end(self) -> Position:
        """The present end, behind the last confirmed entry."""
        known = await self._metas.read(self.name)
        if not known.meta.ledgers:
            return known.meta.first
        info = known.meta.ledgers[-1]
        if info.is_closed:
            return max(known.meta.first, info.end)
        reader = await self._open(known, info)
        last, _ = await reader.wait(after=reader.last_confirmed, timeout_ms=0)
        return max(known.meta.first, position_of_entry(ledger=info.ledger, entry=last + 1))

    async def appended_bytes(self) -> int:
        """The sizes of all messages ever appended, from the last confirmed entry."""
        known = await self._metas.read(self.name)
        for info in reversed(known.meta.ledgers):
            reader = await self._open(known, info)
            if not reader.is_closed:
                # Raises if the bookies are away: an older figure must not pass for the current one.
                await reader.wait(after=reader.last_confirmed, timeout_ms=0)
            if reader.last_confirmed >= 0:
                return (await read_head(reader, reader.last_confirmed)).appended_bytes
        return 0

    async def close(self) -> None:
        for each in self._opened.pop_all():
            await each.close()


def _left_ms(deadline_s: float) -> int:
    left_s = deadline_s - asyncio.get_running_loop().time()
    return max(0, math.ceil(left_s * 1000))


def _is_over(deadline_s: float) -> bool:
    return asyncio.get_running_loop().time() >= deadline_s
