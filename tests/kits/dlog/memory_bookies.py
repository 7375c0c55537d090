"""Bookies and metadata in memory, for the real quorum client in virtual or real time.

`MemoryCluster` is the world: its bookies can be down, hang, refuse, lose everything or have damaged
entries. Each client has `cluster.bookies()` and `cluster.metadata()` of its own, with delays and
lost answers by its random numbers.
"""

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

import msgspec

from raftwood.base.errors import (
    AlreadyExists,
    Overloaded,
    PermissionDenied,
    RaftwoodError,
    Unavailable,
)
from raftwood.base.files import Buffer
from raftwood.dlog.bookie.ledger_descriptor import Limbo
from raftwood.dlog.errors import (
    BookieReadOnly,
    BookieUnavailable,
    Fenced,
    NoSuchEntry,
    NoSuchLedger,
)
from raftwood.dlog.ledgers.metadata import BookieId, BookieInfo, LedgerMetadata
from raftwood.dlog.ledgers.seams import AddRequest, AddSink, BookieBeginning, VersionedMetadata

Answer = TypeVar("Answer")
_HEAD = struct.Struct(">qqqq")


class _BookieLedger:
    def __init__(self, master_key: bytes) -> None:
        self.master_key = master_key
        self.entries: dict[int, bytes] = {}
        self.is_fenced = False
        self.published = -1
        self.last_confirmed = -1
        self.waiters: list[asyncio.Future[None]] = []

    def confirm(self, last_confirmed: int) -> None:
        if last_confirmed > self.last_confirmed:
            self.last_confirmed = last_confirmed
            waiters, self.waiters = self.waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


class MemoryBookie:
    """One bookie: what it has, and what is wrong with it."""

    def __init__(self, info: BookieInfo) -> None:
        self.info = info
        self.ledgers: dict[int, _BookieLedger] = {}
        self.is_registered = True
        self.is_down = False
        self.is_hanging = False
        self.is_read_only = False
        self.overloads = 0
        """So many adds to come are refused for now."""
        self.adds = 0
        self.limbo = Limbo(info.id)
        self.lives = 1

    def wipe(self) -> None:
        self.ledgers.clear()

    def begin_anew(self, next_ledger: int) -> None:
        """All is gone, and it knows that."""
        self.wipe()
        self.lives += 1
        self.limbo = Limbo(self.info.id, next_ledger, next_ledger)

    def entries_of(self, ledger: int) -> dict[int, bytes]:
        found = self.ledgers.get(ledger)
        return {} if found is None else found.entries

    def corrupt(self, ledger: int, entry: int) -> None:
        """One bit of its copy is another one."""
        entries = self.ledgers[ledger].entries
        damaged = bytearray(entries[entry])
        damaged[-1] ^= 1
        entries[entry] = bytes(damaged)

    def _ledger(self, ledger: int, master_key: bytes) -> _BookieLedger:
        found = self.ledgers.setdefault(ledger, _BookieLedger(master_key))
        if found.master_key != master_key:
            raise PermissionDenied(f"{self.info.id}: ledger {ledger} has another master key")
        return found

    def add(
        self, ledger: int, entry: int, packed: bytes, master_key: bytes, *, is_recovery: bool
    ) -> None:
        if self.is_read_only:
            raise BookieReadOnly(f"{self.info.id} takes no writes")
        if self.overloads:
            self.overloads -= 1
            raise Overloaded(f"{self.info.id} has too much to do")
        refusal = self.limbo.refusal_of_add(ledger, is_recovery=is_recovery)
        if refusal is not None:
            raise refusal
        found = self._ledger(ledger, master_key)
        if found.is_fenced and not is_recovery:
            raise Fenced(f"{self.info.id}: ledger {ledger} is fenced")
        self.adds += 1
        found.entries[entry] = packed
        found.confirm(_HEAD.unpack_from(packed)[2])

    def read(self, ledger: int, entry: int, fence_key: bytes | None) -> bytes:
        if fence_key is not None:
            self._ledger(ledger, fence_key).is_fenced = True
        found = self.ledgers.get(ledger)
        doubt = self.limbo.doubt(ledger, entry)
        if doubt is not None and (found is None or entry not in found.entries):
            raise doubt
        if found is None:
            raise NoSuchLedger(f"{self.info.id} has nothing of ledger {ledger}")
        number = max(found.entries, default=-1) if entry == -1 else entry
        if number not in found.entries:
            raise NoSuchEntry(f"{self.info.id} does not have entry {number} of ledger {ledger}")
        return found.entries[number]

    def read_last_confirmed(self, ledger: int) -> tuple[int, bytes]:
        found = self.ledgers.get(ledger)
        doubt = self.limbo.doubt(ledger, -1)
        if doubt is not None:
            raise doubt
        if found is None:
            raise NoSuchLedger(f"{self.info.id} has nothing of ledger {ledger}")
        last = max(found.entries, default=-1)
        return found.published, found.entries.get(last, b"")

    def publish(self, ledger: int, last_confirmed: int, master_key: bytes) -> None:
        found = self._ledger(ledger, master_key)
        found.published = max(found.published, last_confirmed)
        found.confirm(last_confirmed)


class Weather(msgspec.Struct, kw_only=True):
    """How the network is; may be changed at any time."""

    delay_ms_max: float = 0
    stutters: float = 0
    """Which part of messages takes up to `stutter_ms` instead, and all adds behind it too."""
    stutter_ms: float = 0
    lost_answers: float = 0
    """Of calls of the metadata store, which part is done without an answer."""
    timeout_ms: float = 5_000
    """After so long an answer that does not come is an error."""


class MemoryCluster:
    """All bookies and all metadata."""

    def __init__(
        self, bookies: int = 3, *, racks: Sequence[str] = (), weather: Weather | None = None
    ) -> None:
        self.weather = weather or Weather()
        self.bookies_by_id: dict[BookieId, MemoryBookie] = {}
        for number in range(bookies):
            name = BookieId(f"bookie-{number}")
            rack = racks[number % len(racks)] if racks else ""
            self.bookies_by_id[name] = MemoryBookie(BookieInfo(id=name, rack=rack))
        self.ledgers: dict[int, VersionedMetadata] = {}
        self.next_ledger = 0
        self.compared_and_set = 0
        self.watchers: list[asyncio.Future[None]] = []

    def __getitem__(self, number: int) -> MemoryBookie:
        return self.bookies_by_id[BookieId(f"bookie-{number}")]

    def bookies(self, seed: int | str = 0) -> "MemoryBookies":
        return MemoryBookies(self, random.Random(seed))

    def metadata(self, seed: int | str = 0) -> "MemoryLedgerMetadata":
        return MemoryLedgerMetadata(self, random.Random(seed))

    def changed(self) -> None:
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)


class _Add(msgspec.Struct, frozen=True):
    ledger: int
    entry: int
    packed: bytes
    master_key: bytes
    is_recovery: bool


class MemoryBookies:
    """A `Bookies`: one client's connections."""

    def __init__(self, cluster: MemoryCluster, chance: random.Random) -> None:
        self._cluster = cluster
        self._random = chance
        self._arrives_at: dict[BookieId, float] = {}
        self.is_closed = False
        self.is_cut_off = False

    def _delay_s(self) -> float:
        weather = self._cluster.weather
        if weather.stutters and self._random.random() < weather.stutters:
            return self._random.random() * weather.stutter_ms / 1000
        return self._random.random() * weather.delay_ms_max / 1000

    def prepare_add(
        self,
        *,
        ledger: int,
        entry: int,
        packed: Sequence[Buffer],
        master_key: bytes,
        is_recovery: bool = False,
    ) -> AddRequest:
        return _Add(ledger, entry, b"".join(packed), master_key, is_recovery)

    def add(self, bookie: BookieId, request: AddRequest, sink: AddSink) -> None:
        assert isinstance(request, _Add)
        loop = asyncio.get_running_loop()
        # Adds to one bookie arrive in order.
        moment = max(self._arrives_at.get(bookie, 0.0), loop.time() + self._delay_s())
        self._arrives_at[bookie] = moment
        loop.call_at(moment, self._add_arrived, bookie, request, sink)

    def _add_arrived(self, bookie: BookieId, request: _Add, sink: AddSink) -> None:
        loop = asyncio.get_running_loop()
        target = self._cluster.bookies_by_id[bookie]
        error: RaftwoodError | None = None
        delay_s = self._delay_s()
        if self.is_closed:
            return
        if target.is_hanging:
            delay_s = self._cluster.weather.timeout_ms / 1000
            error = BookieUnavailable(f"{bookie} hangs")
        elif target.is_down or self.is_cut_off:
            error = BookieUnavailable(f"{bookie} is down")
        else:
            try:
                target.add(
                    request.ledger,
                    request.entry,
                    request.packed,
                    request.master_key,
                    is_recovery=request.is_recovery,
                )
            except RaftwoodError as refused:
                error = refused
        loop.call_later(delay_s, sink.added, request.entry, bookie, error)

    async def _reach(self, bookie: BookieId) -> MemoryBookie:
        await asyncio.sleep(self._delay_s())
        target = self._cluster.bookies_by_id[bookie]
        if target.is_hanging:
            await asyncio.sleep(self._cluster.weather.timeout_ms / 1000)
            raise BookieUnavailable(f"{bookie} hangs")
        if target.is_down or self.is_cut_off:
            raise BookieUnavailable(f"{bookie} is down")
        return target

    async def read(
        self, bookie: BookieId, *, ledger: int, entry: int, fence_key: bytes | None = None
    ) -> Buffer:
        packed = (await self._reach(bookie)).read(ledger, entry, fence_key)
        await asyncio.sleep(self._delay_s())
        return packed

    async def read_last_confirmed(self, bookie: BookieId, *, ledger: int) -> tuple[int, Buffer]:
        answer = (await self._reach(bookie)).read_last_confirmed(ledger)
        await asyncio.sleep(self._delay_s())
        return answer

    async def wait_last_confirmed(
        self, bookie: BookieId, *, ledger: int, after: int, timeout_ms: int
    ) -> int:
        found = (await self._reach(bookie)).ledgers.get(ledger)
        if found is None:
            raise NoSuchLedger(f"{bookie} has nothing of ledger {ledger}")
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while found.last_confirmed <= after:
                    waiter = asyncio.get_running_loop().create_future()
                    found.waiters.append(waiter)
                    await waiter
        except TimeoutError:
            pass
        await asyncio.sleep(self._delay_s())
        return found.last_confirmed

    async def write_last_confirmed(
        self,
        bookie: BookieId,
        *,
        ledger: int,
        last_confirmed: int,
        master_key: bytes,
        digest: bytes,  # noqa: ARG002
    ) -> None:
        (await self._reach(bookie)).publish(ledger, last_confirmed, master_key)
        await asyncio.sleep(self._delay_s())

    async def close(self) -> None:
        self.is_closed = True


class MemoryLedgerMetadata:
    """A `LedgerMetadataStore`: one client's view."""

    def __init__(self, cluster: MemoryCluster, chance: random.Random) -> None:
        self._cluster = cluster
        self._random = chance

    async def _do(self, action: Callable[[], Answer]) -> Answer:
        weather = self._cluster.weather
        await asyncio.sleep(self._random.random() * weather.delay_ms_max / 1000)
        answer = action()
        await asyncio.sleep(self._random.random() * weather.delay_ms_max / 1000)
        if weather.lost_answers and self._random.random() < weather.lost_answers:
            raise Unavailable("the answer was lost")
        return answer

    async def new_ledger_id(self) -> int:
        def draw() -> int:
            self._cluster.next_ledger += 1
            return self._cluster.next_ledger - 1

        return await self._do(draw)

    async def create(self, ledger: int, metadata: LedgerMetadata) -> int:
        def create() -> int:
            if ledger in self._cluster.ledgers:
                raise AlreadyExists(f"there is a ledger {ledger}")
            self._cluster.ledgers[ledger] = VersionedMetadata(metadata, 0)
            return 0

        return await self._do(create)

    async def get(self, ledger: int) -> VersionedMetadata:
        return await self._do(lambda: self._get(ledger))

    def _get(self, ledger: int) -> VersionedMetadata:
        if ledger not in self._cluster.ledgers:
            raise NoSuchLedger(f"there is no ledger {ledger}")
        return self._cluster.ledgers[ledger]

    async def compare_and_set(
        self, ledger: int, metadata: LedgerMetadata, *, version: int
    ) -> int | None:
        def write() -> int | None:
            if self._get(ledger).version != version:
                return None
            self._cluster.ledgers[ledger] = VersionedMetadata(metadata, version + 1)
            self._cluster.compared_and_set += 1
            self._cluster.changed()
            return version + 1

        return await self._do(write)

    async def delete(self, ledger: int) -> None:
        def delete() -> None:
            self._cluster.ledgers.pop(ledger, None)
            for bookie in self._cluster.bookies_by_id.values():
                bookie.ledgers.pop(ledger, None)
            self._cluster.changed()

        await self._do(delete)

    async def ledgers(self, *, first: int = 0) -> AsyncIterator[int]:
        for ledger in await self._do(lambda: sorted(self._cluster.ledgers)):
            if ledger >= first:
                yield ledger

    async def wait_changed(self, ledger: int, *, version: int, timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while (
                    found := self._cluster.ledgers.get(ledger)
                ) is not None and found.version == version:
                    watcher = asyncio.get_running_loop().create_future()
                    self._cluster.watchers.append(watcher)
                    await watcher
        except TimeoutError:
            pass

    async def bookies(self) -> list[BookieInfo]:
        return await self._do(
            lambda: [
                msgspec.structs.replace(each.info, is_read_only=each.is_read_only)
                for each in self._cluster.bookies_by_id.values()
                if each.is_registered
            ]
        )

    async def beginning(self, bookie: BookieId) -> BookieBeginning:
        found = self._cluster.bookies_by_id[bookie]
        return await self._do(
            lambda: BookieBeginning(
                instance=str(found.lives), limbo_end=found.limbo.doubts_below or None
            )
        )

    async def close(self) -> None:
        pass
