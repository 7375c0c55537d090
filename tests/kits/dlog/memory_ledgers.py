"""`MemoryLedgerStore`: a whole `LedgerStore` in memory that keeps the seam's promises.

Appends are acked in order after a delay. A writer that is fenced, abandoned or broken leaves behind
some of what it was not acked for, by the choice of the store's random numbers: whoever recovers the
ledger finds it, and it is then there for ever. Readers see an entry once it is published.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Mapping

from raftwood.base.errors import OutOfRange, Overloaded, PermissionDenied, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.dlog.errors import (
    CannotRecover,
    Fenced,
    LedgerClosed,
    NoSuchLedger,
    NotEnoughBookies,
)
from raftwood.dlog.ledgers.metadata import (
    BookieId,
    BookieInfo,
    EntryId,
    LedgerConfig,
    LedgerMetadata,
    LedgerState,
    Segment,
)
from raftwood.dlog.ledgers.seams import LedgerEntry


class _Ledger:
    """What all who have opened a ledger share."""

    def __init__(self, number: int, config: LedgerConfig, properties: dict[str, bytes]) -> None:
        self.number = number
        self.config = config
        self.properties = properties
        self.entries: list[bytes] = []
        self.published = -1
        self.state = LedgerState.OPEN
        self.is_deleted = False
        self.writer: MemoryLedgerWriter | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def is_closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    @property
    def readable(self) -> int:
        return len(self.entries) - 1 if self.is_closed else self.published

    def publish(self, last_confirmed: int) -> None:
        if last_confirmed > self.published:
            self.published = last_confirmed
            self.wake()

    def wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter


class MemoryLedgerWriter:
    """A `LedgerWriter`; at most `under_way_max` appends wait for their ack."""

    def __init__(self, store: "MemoryLedgerStore", ledger: _Ledger) -> None:
        self._store = store
        self._ledger = ledger
        self._under_way: deque[tuple[bytes, asyncio.Future[int]]] = deque()
        self._error: RaftwoodError | None = None
        self._is_closing = False
        self._appended = 0
        self._length_bytes = 0
        self._timer: asyncio.Handle | None = None

    @property
    def ledger(self) -> int:
        return self._ledger.number

    @property
    def last_confirmed(self) -> int:
        return self._appended - len(self._under_way) - 1

    @property
    def length_bytes(self) -> int:
        return self._length_bytes

    def append(self, data: Buffer) -> "asyncio.Future[int]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        if self._error is not None or self._is_closing:
            future.set_exception(self._error or LedgerClosed(f"ledger {self.ledger} is closed"))
        elif len(self._under_way) >= self._store.under_way_max or self._store.refuses(data):
            future.set_exception(Overloaded(f"ledger {self.ledger}: wait for acks, then append"))
        else:
            self._ledger.publish(self.last_confirmed)
            self._appended += 1
            self._length_bytes += len(data)
            self._under_way.append((bytes(data), future))
            if self._timer is None:
                self._timer = loop.call_later(self._store.delay_ms / 1000, self._arrived)
        return future

    def _arrived(self) -> None:
        """Everything that is under way reaches the bookies at once, and is acked."""
        self._timer = None
        if self._error is None:
            while self._under_way:
                data, future = self._under_way.popleft()
                self._ledger.entries.append(data)
                if not future.done():
                    future.set_result(len(self._ledger.entries) - 1)
            if self._store.publish_ms:
                loop = asyncio.get_running_loop()
                loop.call_later(self._store.publish_ms / 1000, self._published)
            else:
                self._published()

    def _published(self) -> None:
        if self._error is None:
            self._ledger.publish(self.last_confirmed)

    def end(self, error: RaftwoodError) -> None:
        """No ack from here on; a part of what is under way may be stored all the same."""
        if self._error is None:
            self._error = error
            under_way, self._under_way = self._under_way, deque()
            stored = self._store.random.randint(0, len(under_way))
            for number, (data, future) in enumerate(under_way):
                if number < stored and not self._ledger.is_closed:
                    self._ledger.entries.append(data)
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # Whether the caller still looks is the caller's affair.

    async def close(self) -> None:
        if self._is_closing and self._error is None:
            return
        self._is_closing = True
        waiting = [future for _, future in self._under_way]
        if waiting:
            await asyncio.wait(waiting)
        await asyncio.sleep(self._store.delay_ms / 1000)
        if isinstance(self._error, LedgerClosed):
            return
        if self._error is not None:
            raise self._error
        self._ledger.state = LedgerState.CLOSED
        self.end(LedgerClosed(f"ledger {self.ledger} is closed"))
        self._ledger.wake()

    async def abandon(self) -> None:
        self.end(LedgerClosed(f"the writer of ledger {self.ledger} was abandoned"))


class MemoryLedgerReader:
    """A `LedgerReader`."""

    def __init__(self, ledger: _Ledger) -> None:
        self._ledger = ledger

    @property
    def ledger(self) -> int:
        return self._ledger.number

    @property
    def is_closed(self) -> bool:
        return self._ledger.is_closed

    @property
    def last_confirmed(self) -> int:
        return self._ledger.readable

    @property
    def length_bytes(self) -> int:
        return sum(len(data) for data in self._ledger.entries[: self._ledger.readable + 1])

    async def read(self, *, first: int, last: int) -> list[LedgerEntry]:
        await asyncio.sleep(0)
        if self._ledger.is_deleted:
            raise NoSuchLedger(f"ledger {self.ledger} was deleted")
        if not 0 <= first <= last <= self._ledger.readable:
            raise OutOfRange(
                f"ledger {self.ledger} has entries 0 to {self._ledger.readable}, not {first} to "
                f"{last}"
            )
        found = self._ledger.entries[first : last + 1]
        return [LedgerEntry(number, data) for number, data in enumerate(found, first)]

    def confirm(self, entry: int) -> None:
        self._ledger.publish(entry)

    async def wait(self, *, after: int, timeout_ms: int) -> tuple[int, bool]:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self._ledger.readable <= after and not self._ledger.is_closed:
                    await self._ledger.changed()
        except TimeoutError:
            pass
        return self._ledger.readable, self._ledger.is_closed

    async def close(self) -> None:
        pass


class MemoryLedgerStore:
    """A `LedgerStore`; several users of one store are several clients of one cluster.

    `refused_creates` and `refused_recoveries` fail so many calls to come, `refused_append` the next
    append that has these bytes in it, as too much; `break_writer` ends a writer as a lost quorum
    would. With `publish_ms`, readers see an entry so long after its ack, as with writers of 0.1.0.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        delay_ms: float = 0,
        publish_ms: float = 0,
        under_way_max: int = 10_000,
    ) -> None:
        self.random = random.Random(seed)
        self.delay_ms = delay_ms
        self.publish_ms = publish_ms
        self.under_way_max = under_way_max
        self.refused_creates = 0
        self.refused_recoveries = 0
        self.refused_append: bytes | None = None
        self._ledgers: dict[int, _Ledger] = {}
        self._next = 0

    async def create(
        self, config: LedgerConfig, *, properties: Mapping[str, bytes] | None = None
    ) -> MemoryLedgerWriter:
        await asyncio.sleep(self.delay_ms / 1000)
        if self.refused_creates > 0:
            self.refused_creates -= 1
            raise NotEnoughBookies(f"fewer than {config.ensemble} bookies take writes")
        ledger = _Ledger(self._next, config, dict(properties or {}))
        self._next += 1
        self._ledgers[ledger.number] = ledger
        ledger.writer = MemoryLedgerWriter(self, ledger)
        return ledger.writer

    async def open(
        self, ledger: int, *, recover: bool, password: bytes = b""
    ) -> MemoryLedgerReader:
        await asyncio.sleep(self.delay_ms / 1000)
        found = self._get(ledger)
        if password != found.config.password:
            raise PermissionDenied(f"ledger {ledger}: the password is another one")
        if recover and not found.is_closed:
            await self._recover(found)
        return MemoryLedgerReader(found)

    async def _recover(self, ledger: _Ledger) -> None:
        ledger.state = LedgerState.IN_RECOVERY
        if ledger.writer is not None:
            ledger.writer.end(Fenced(f"ledger {ledger.number}: another writer has taken over"))
        await asyncio.sleep(self.delay_ms / 1000)
        if self.refused_recoveries > 0:
            self.refused_recoveries -= 1
            raise CannotRecover(f"ledger {ledger.number}: too few bookies answer: try again")
        ledger.state = LedgerState.CLOSED
        ledger.wake()

    def refuses(self, data: Buffer) -> bool:
        if self.refused_append is None or self.refused_append not in bytes(data):
            return False
        self.refused_append = None
        return True

    def break_writer(self, ledger: int, error: RaftwoodError | None = None) -> None:
        """Its appends fail from here on; the ledger stays open until somebody recovers it."""
        writer = self._get(ledger).writer
        if writer is not None:
            writer.end(error or NotEnoughBookies(f"ledger {ledger}: too few bookies are left"))

    async def info(self, ledger: int) -> LedgerMetadata:
        await asyncio.sleep(self.delay_ms / 1000)
        found = self._get(ledger)
        bookies = tuple(BookieId(f"memory-{each}") for each in range(found.config.ensemble))
        last = len(found.entries) - 1 if found.is_closed else -1
        return LedgerMetadata(
            config=found.config,
            segments=(Segment(EntryId(0), bookies),),
            state=found.state,
            last_entry=EntryId(last),
            length_bytes=sum(len(data) for data in found.entries) if found.is_closed else 0,
            properties=found.properties,
        )

    async def delete(self, ledger: int) -> None:
        await asyncio.sleep(self.delay_ms / 1000)
        found = self._ledgers.pop(ledger, None)
        if found is not None:
            found.is_deleted = True
            if found.writer is not None:
                found.writer.end(NoSuchLedger(f"ledger {ledger} was deleted"))
            found.wake()

    async def ledgers(self, *, first: int = 0) -> AsyncIterator[int]:
        for ledger in sorted(self._ledgers):
            if ledger >= first:
                yield ledger

    async def bookies(self) -> list[BookieInfo]:
        return []

    async def close(self) -> None:
        for ledger in list(self._ledgers.values()):
            if ledger.writer is not None:
                ledger.writer.end(LedgerClosed("the store of ledgers was closed"))

    def _get(self, ledger: int) -> _Ledger:
        found = self._ledgers.get(ledger)
        if found is None:
            raise NoSuchLedger(f"there is no ledger {ledger}")
        return found
