"""Closed ledgers are copied to cheap storage, verified, and deleted; readers notice nothing.

The copy is read back and compared before the record says that the ledger is offloaded, and the
ledger is deleted after that: whoever crashes in between leaves a copy that nobody asks for, or a
ledger that is found as an orphan.
"""

import contextlib
from collections.abc import AsyncIterator

from raftwood.base.errors import NotFound, OutOfRange, RaftwoodError, StoreDamaged
from raftwood.dlog.errors import NoSuchLedger
from raftwood.dlog.ledgers.ledger_store import Entry, LedgerReader
from raftwood.dlog.log.meta import LedgerInfo, LogMeta
from raftwood.dlog.log.offload_format import (
    FOOT_BYTES,
    HEAD_BYTES,
    Index,
    OffloadEncoder,
    check_head,
    decode_entries,
    decode_index,
    foot_of,
)
from raftwood.dlog.log.offload_store import OffloadStore
from raftwood.dlog.log.opening import LedgerSource

PART_BYTES = 4 << 20


def object_name(meta: LogMeta, ledger: int) -> str:
    return f"{meta.token.hex()}/{ledger:020}.dlof"


class OffloadedReader:
    """A `LedgerReader` of an object."""

    def __init__(self, store: OffloadStore, name: str, ledger: int, index: Index) -> None:
        self._store = store
        self._name = name
        self._ledger = ledger
        self._index = index

    @classmethod
    async def open(cls, store: OffloadStore, name: str, ledger: int) -> "OffloadedReader":
        size = await store.size(name)
        check_head(await store.read(name, offset=0, length=HEAD_BYTES), ledger=ledger)
        tail = await store.read(name, offset=max(0, size - FOOT_BYTES), length=FOOT_BYTES)
        offset, length = foot_of(tail, ledger=ledger, size=size)
        index = decode_index(await store.read(name, offset=offset, length=length), ledger=ledger)
        return cls(store, name, ledger, index)

    @property
    def ledger(self) -> int:
        return self._ledger

    @property
    def is_closed(self) -> bool:
        return True

    @property
    def last_confirmed(self) -> int:
        return self._index.last_entry

    @property
    def length_bytes(self) -> int:
        return self._index.data_bytes

    async def read(self, *, first: int, last: int) -> list[Entry]:
        if not 0 <= first <= last <= self.last_confirmed:
            raise OutOfRange(
                f"ledger {self._ledger} has entries 0 to {self.last_confirmed}, not {first} to "
                f"{last}"
            )
        offset, length = self._index.range_of(first=first, last=last)
        try:
            data = await self._store.read(self._name, offset=offset, length=length)
        except NotFound as error:
            raise _no_such_copy(self._ledger) from error
        entries = list(decode_entries(data, ledger=self._ledger))
        if len(entries) != last + 1 - first:
            raise StoreDamaged(f"ledger {self._ledger}: what was offloaded is cut off")
        return [Entry(number, entry) for number, entry in enumerate(entries, first)]

    async def wait(self, *, after: int, timeout_ms: int) -> tuple[int, bool]:  # noqa: ARG002
        return self.last_confirmed, True

    def confirm(self, last_confirmed: int) -> None:
        """It is closed: all is known."""

    async def close(self) -> None:
        pass


class OffloadedLedgers:
    """A `LedgerSource`: offloaded ledgers from their copies, others from where they are."""

    def __init__(self, inner: LedgerSource, store: OffloadStore) -> None:
        self._inner = inner
        self._store = store

    async def open(self, meta: LogMeta, info: LedgerInfo) -> LedgerReader:
        if not info.is_offloaded:
            return await self._inner.open(meta, info)
        name = object_name(meta, info.ledger)
        try:
            return await OffloadedReader.open(self._store, name, info.ledger)
        except NotFound as error:
            raise _no_such_copy(info.ledger) from error


def _no_such_copy(ledger: int) -> NoSuchLedger:
    return NoSuchLedger(f"there is no copy of ledger {ledger}: it was freed")


async def copy_ledger(
    reader: LedgerReader, store: OffloadStore, name: str, *, attempt: str
) -> None:
    """Copy a closed ledger, read the copy back to compare it, and give it its name.

    Several may do so at once, each by a name of its own attempt at first: what was not compared
    never takes the place of what was.
    """
    own = f"{name}.{attempt}"
    try:
        await store.write(own, _object_of(reader))
        await _compare(reader, await OffloadedReader.open(store, own, reader.ledger))
    except BaseException:
        with contextlib.suppress(RaftwoodError):
            await store.delete(own)
        raise
    await store.rename(own, name)


async def _compare(reader: LedgerReader, copy: OffloadedReader) -> None:
    last = reader.last_confirmed
    if (copy.last_confirmed, copy.length_bytes) != (last, reader.length_bytes):
        raise StoreDamaged(f"ledger {reader.ledger}: its copy has another length")
    step = _step(reader)
    for first in range(0, last + 1, step):
        until = min(last, first + step - 1)
        if await reader.read(first=first, last=until) != await copy.read(first=first, last=until):
            raise StoreDamaged(f"ledger {reader.ledger}: its copy is not the same")


async def _object_of(reader: LedgerReader) -> AsyncIterator[bytes]:
    encoder = OffloadEncoder(reader.ledger)
    yield encoder.head()
    step = _step(reader)
    for first in range(0, reader.last_confirmed + 1, step):
        last = min(reader.last_confirmed, first + step - 1)
        entries = await reader.read(first=first, last=last)
        yield encoder.entries([entry.data for entry in entries])
    yield encoder.foot()


def _step(reader: LedgerReader) -> int:
    """How many entries are about a part."""
    average = max(1, reader.length_bytes // max(1, reader.last_confirmed + 1))
    return max(1, min(PART_BYTES // average, 10_000))
