"""`MetaLedgers`: ledgers' metadata and the list of bookies on a metastore, whichever it is.

dlog/next-ledger                 the id of the next ledger, by compare-and-set
dlog/ledgers/<20 digits>         a ledger's metadata, as JSON with a format version
dlog/bookies/<id>                a bookie that runs now, under a lease (`membership`)
"""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from raftwood.base.errors import (
    AlreadyExists,
    Overloaded,
    StoreDamaged,
    UnsupportedVersion,
)
from raftwood.base.files import Buffer
from raftwood.base.seams import MetaStore, RemoveKey
from raftwood.dlog.bookie.ledger_watch import LedgerWatch
from raftwood.dlog.bookie.membership import beginning_of, running_bookies
from raftwood.dlog.errors import NoSuchLedger
from raftwood.dlog.ledgers.model import LEDGER_MAX, BookieId, BookieInfo, LedgerMetadata
from raftwood.dlog.ledgers.seams import Beginning, VersionedMetadata

FORMAT_VERSION: Final = 1
NEXT_LEDGER: Final = "dlog/next-ledger"
LEDGERS: Final = "dlog/ledgers/"
_PAGE: Final = 1_000
_ATTEMPTS: Final = 200
_PAUSE_S_MAX: Final = 0.02


class _Stored(msgspec.Struct, frozen=True):
    version: int
    ledger: msgspec.Raw


def encode_metadata(metadata: LedgerMetadata) -> bytes:
    return msgspec.json.encode(_Stored(FORMAT_VERSION, msgspec.Raw(msgspec.json.encode(metadata))))


def decode_metadata(data: Buffer, *, ledger: int) -> LedgerMetadata:
    """`UnsupportedVersion` where a newer Raftwood wrote it."""
    try:
        stored = msgspec.json.decode(data, type=_Stored)
        if stored.version > FORMAT_VERSION:
            raise UnsupportedVersion(
                f"the metadata of ledger {ledger} have format {stored.version}, this Raftwood "
                f"reads up to {FORMAT_VERSION}: use the version that wrote them, or a newer one"
            )
        return msgspec.json.decode(stored.ledger, type=LedgerMetadata)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreDamaged(f"the metadata of ledger {ledger} cannot be read: {error}") from None


class MetaLedgers:
    """A `LedgerMetadataStore`; the metastore stays its owner's."""

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
            await asyncio.sleep(self._random.uniform(0, _PAUSE_S_MAX))
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

    async def beginning(self, bookie: BookieId) -> Beginning:
        return await beginning_of(self._store, bookie)

    async def close(self) -> None:
        await self._watch.close()


async def next_ledger(store: MetaStore) -> int:
    """No ledger with this number, or a higher one, was made so far."""
    found = await store.get(NEXT_LEDGER)
    return 0 if found is None else int(found.value)


def ledger_key(ledger: int) -> str:
    """In order of the numbers."""
    return f"{LEDGERS}{min(max(ledger, 0), LEDGER_MAX):020d}"


def _no_such_ledger(ledger: int) -> NoSuchLedger:
    return NoSuchLedger(f"there is no ledger {ledger}: it was deleted, or never made")
