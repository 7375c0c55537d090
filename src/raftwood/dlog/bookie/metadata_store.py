"""`MetaLedgers`: metadata of ledgers and the list of bookies on a `MetaStore`.

dlog/next-ledger                 the id of the next ledger, by compare-and-set
dlog/ledgers/<20 digits>         a ledger's metadata, as JSON with a format version
dlog/bookies/<id>                a bookie that runs now, under a lease (`membership`)
"""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.errors import (
    AlreadyExists,
    Overloaded,
    RaftwoodError,
    ShuttingDown,
    StoreDamaged,
)
from raftwood.base.files import Buffer
from raftwood.base.logs import get_logger
from raftwood.base.seams import MetaStore, RemoveKey
from raftwood.base.versions import unsupported
from raftwood.dlog.bookie.membership import beginning_of, running_bookies
from raftwood.dlog.errors import NoSuchLedger
from raftwood.dlog.ledgers.metadata import LEDGER_MAX, BookieId, BookieInfo, LedgerMetadata
from raftwood.dlog.ledgers.seams import BookieBeginning, VersionedMetadata

WAITS_MAX: Final = 10_000
_AGAIN_S: Final = 0.2
_log = get_logger("ledgers")


class LedgerWatch:
    """One watch for all waits on changes of ledgers; stops some time after the last wait."""

    def __init__(self, store: MetaStore, prefix: str, *, idle_s: float = 10.0) -> None:
        self._store = store
        self._prefix = prefix
        self._idle_s = idle_s
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}
        self._count = 0
        self._task: asyncio.Task[None] | None = None
        self._began = asyncio.Event()
        self._ending: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def wait(self, key: str, *, version: int, timeout_ms: int) -> None:
        """Waits until the key has another version or is gone, or the time is over."""
        if self._is_closed:
            raise ShuttingDown("the ledgers' metadata are closed")
        if self._count >= WAITS_MAX:
            raise Overloaded(f"{self._count} wait for changes of ledgers already: try again later")
        self._count += 1
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._until_changed(key, version)
        except TimeoutError:
            return
        finally:
            self._count -= 1
            if not self._count and self._task is not None:
                loop = asyncio.get_running_loop()
                self._ending = loop.call_later(self._idle_s, self._end)

    async def _until_changed(self, key: str, version: int) -> None:
        self._begin()
        while True:
            await self._began.wait()
            # The future is registered before the key is read: a change between the two would be
            # missed, and a reader would wait for its whole time.
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting = self._waiting.setdefault(key, {})
            waiting[told] = None
            try:
                found = await self._store.get(key)
                if found is None or found.version != version:
                    return
                await told
            finally:
                del waiting[told]
                if not waiting and self._waiting.get(key) is waiting:
                    del self._waiting[key]
            if self._is_closed:
                raise ShuttingDown("the ledgers' metadata are closed")

    def _begin(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if self._task is None:
            self._began.clear()
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(), name=f"watch of {self._prefix}")

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                seen = (await self._store.range(prefix=self._prefix, limit=1)).version
                self._began.set()
                # The watch does not report changes from before it began.
                self._tell_all()
                async for changes in self._store.watch(self._prefix, after_version=seen):
                    for change in changes:
                        self._tell(change.key)
            except RaftwoodError as error:
                _log.warning("the watch of ledgers begins anew", reason=error.message)
            self._began.clear()
            await asyncio.sleep(_AGAIN_S)

    def _tell(self, key: str) -> None:
        for future in self._waiting.get(key, ()):
            if not future.done():
                future.set_result(None)

    def _tell_all(self) -> None:
        for key in self._waiting:
            self._tell(key)

    async def close(self) -> None:
        """Ends all waits with `ShuttingDown`."""
        self._is_closed = True
        if self._ending is not None:
            self._ending.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        self._began.set()
        self._tell_all()


FORMAT_VERSION: Final = 1
NEXT_LEDGER: Final = "dlog/next-ledger"
LEDGERS: Final = "dlog/ledgers/"
_PAGE: Final = 1_000
_ATTEMPTS: Final = 200
_PAUSE: Final = Backoff(first_ms=20, longest_ms=20, jitter=1)


class _Stored(msgspec.Struct, frozen=True):
    version: int
    ledger: msgspec.Raw


def encode_metadata(metadata: LedgerMetadata) -> bytes:
    return msgspec.json.encode(_Stored(FORMAT_VERSION, msgspec.Raw(msgspec.json.encode(metadata))))


def decode_metadata(data: Buffer, *, ledger: int) -> LedgerMetadata:
    """Decodes metadata; `UnsupportedVersion` if a newer Raftwood wrote them."""
    try:
        stored = msgspec.json.decode(data, type=_Stored)
        if stored.version > FORMAT_VERSION:
            raise unsupported(f"the record of ledger {ledger}", stored.version, FORMAT_VERSION)
        return msgspec.json.decode(stored.ledger, type=LedgerMetadata)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreDamaged(f"the metadata of ledger {ledger} cannot be read: {error}") from None


class MetaLedgers:
    """A `LedgerMetadataStore` on a metastore, which it does not close."""

    def __init__(self, store: MetaStore, random_source: random.Random) -> None:
        self._store = store
        self._random = random_source
        self._watch = LedgerWatch(store, LEDGERS)

    async def new_ledger_id(self) -> int:
        for _ in range(_ATTEMPTS):
            found = await self._store.get(NEXT_LEDGER)
            ledger = 0 if found is None else int(found.value)
            version = 0 if found is None else found.version
            following = str(ledger + 1).encode()
            if await self._store.compare_and_set(NEXT_LEDGER, following, version=version):
                return ledger
            await asyncio.sleep(_PAUSE.delay_s(0, self._random))
        raise Overloaded("too many make ledgers at once: try again")

    async def create(self, ledger: int, metadata: LedgerMetadata) -> int:
        value = encode_metadata(metadata)
        version = await self._store.compare_and_set(ledger_key(ledger), value, version=0)
        if version is None:
            raise AlreadyExists(f"ledger {ledger} exists already")
        return version

    async def get(self, ledger: int) -> VersionedMetadata:
        found = await self._store.get(ledger_key(ledger))
        if found is None:
            raise _no_such_ledger(ledger)
        return VersionedMetadata(decode_metadata(found.value, ledger=ledger), found.version)

    async def compare_and_set(
        self, ledger: int, metadata: LedgerMetadata, *, version: int
    ) -> int | None:
        key = ledger_key(ledger)
        changed = await self._store.compare_and_set(key, encode_metadata(metadata), version=version)
        if changed is None and await self._store.get(key) is None:
            raise _no_such_ledger(ledger)
        return changed

    async def delete(self, ledger: int) -> None:
        await self._store.transact((), (RemoveKey(ledger_key(ledger)),))

    async def ledgers(self, *, first: int = 0) -> AsyncIterator[int]:
        start: str | None = ledger_key(first)
        while start is not None:
            page = await self._store.range(prefix=LEDGERS, start=start, limit=_PAGE)
            for entry in page.entries:
                yield int(entry.key.removeprefix(LEDGERS))
            start = page.next_start

    async def wait_changed(self, ledger: int, *, version: int, timeout_ms: int) -> None:
        await self._watch.wait(ledger_key(ledger), version=version, timeout_ms=timeout_ms)

    async def bookies(self) -> list[BookieInfo]:
        return await running_bookies(self._store)

    async def beginning(self, bookie: BookieId) -> BookieBeginning:
        return await beginning_of(self._store, bookie)

    async def close(self) -> None:
        await self._watch.close()


async def next_ledger(store: MetaStore) -> int:
    """The next ledger's number: no ledger has it or a higher one yet."""
    found = await store.get(NEXT_LEDGER)
    return 0 if found is None else int(found.value)


def ledger_key(ledger: int) -> str:
    """The key of a ledger; keys sort as the numbers do."""
    return f"{LEDGERS}{min(max(ledger, 0), LEDGER_MAX):020d}"


def _no_such_ledger(ledger: int) -> NoSuchLedger:
    return NoSuchLedger(f"there is no ledger {ledger}: it was deleted, or never made")
