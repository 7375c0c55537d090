"""Offload: copies closed ledgers to cheap storage, verifies and deletes them, unseen by readers.

An object has the entries with their checksums, then an index of their places. `OffloadStore` keeps
objects: written once, read in parts, deleted. pyarrow is loaded when a store is opened.
"""

import asyncio
import contextlib
import os
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from xxhash import xxh3_64_intdigest

from raftwood.base.errors import (
    NotFound,
    OutOfRange,
    RaftwoodError,
    StoreDamaged,
    Unavailable,
)
from raftwood.base.files import Buffer
from raftwood.base.versions import unsupported
from raftwood.dlog.errors import NoSuchLedger
from raftwood.dlog.ledgers.seams import LedgerEntry, LedgerReader
from raftwood.dlog.log.ledger_source import LedgerSource
from raftwood.dlog.log.meta import LedgerInfo, LogMeta

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

MAGIC: Final = b"DLOF"
VERSION: Final = 1
_HEAD: Final = struct.Struct(">4sBQ")
_ENTRY: Final = struct.Struct(">IQ")
_FOOT: Final = struct.Struct(">QQQ")
_SEAL: Final = struct.Struct(">Q4sB")
HEAD_BYTES: Final = _HEAD.size
FOOT_BYTES: Final = _FOOT.size + _SEAL.size


class OffloadIndex(msgspec.Struct, frozen=True):
    """The places of the entries in an object."""

    offsets: tuple[int, ...]
    end: int
    """The offset behind the last entry."""
    data_bytes: int

    @property
    def last_entry(self) -> int:
        return len(self.offsets) - 1

    def range_of(self, *, first: int, last: int) -> tuple[int, int]:
        """Returns (offset, length) of a range of entries."""
        end = self.offsets[last + 1] if last + 1 < len(self.offsets) else self.end
        return self.offsets[first], end - self.offsets[first]


class OffloadEncoder:
    """Encodes an object, a part at a time."""

    def __init__(self, ledger: int) -> None:
        self._ledger = ledger
        self._offsets: list[int] = []
        self._position = HEAD_BYTES
        self._data_bytes = 0

    def head(self) -> bytes:
        return _HEAD.pack(MAGIC, VERSION, self._ledger)

    def entries(self, entries: Sequence[Buffer]) -> bytes:
        """Encodes the next entries, in order."""
        parts: list[Buffer] = []
        for data in entries:
            parts += (_ENTRY.pack(len(data), xxh3_64_intdigest(data)), data)
            self._offsets.append(self._position)
            self._position += _ENTRY.size + len(data)
            self._data_bytes += len(data)
        return b"".join(parts)

    def foot(self) -> bytes:
        index = struct.pack(f">{len(self._offsets)}Q", *self._offsets)
        foot = _FOOT.pack(self._position, len(self._offsets), self._data_bytes)
        return index + foot + _SEAL.pack(xxh3_64_intdigest(index + foot), MAGIC, VERSION)


def check_head(data: Buffer, *, ledger: int) -> None:
    """Checks that an object is that of a ledger."""
    if len(data) < HEAD_BYTES or bytes(data[:4]) != MAGIC:
        raise StoreDamaged(f"ledger {ledger}: what was offloaded is no ledger")
    _, version, found = _HEAD.unpack_from(data)
    _check_version(version, ledger)
    if found != ledger:
        raise StoreDamaged(f"ledger {ledger}: ledger {found} stands in its place")


def _check_version(version: int, ledger: int) -> None:
    if version != VERSION:
        raise unsupported(f"what was offloaded of ledger {ledger}", version, VERSION)


def foot_of(data: Buffer, *, ledger: int, size: int) -> tuple[int, int]:
    """Returns (offset, length) of the index and the foot, from an object's last bytes and size."""
    if len(data) < FOOT_BYTES or bytes(data[-5:-1]) != MAGIC:
        raise StoreDamaged(f"ledger {ledger}: what was offloaded is cut off")
    _check_version(data[-1], ledger)
    offset, count, _ = _FOOT.unpack_from(data, len(data) - FOOT_BYTES)
    if offset < HEAD_BYTES or offset + 8 * count + FOOT_BYTES != size:
        raise StoreDamaged(f"ledger {ledger}: the foot of what was offloaded is damaged")
    return offset, size - offset


def decode_index(data: Buffer, *, ledger: int) -> OffloadIndex:
    """Decodes the index, from the bytes of index and foot."""
    checked = data[: len(data) - _SEAL.size]
    if xxh3_64_intdigest(checked) != _SEAL.unpack_from(data, len(checked))[0]:
        raise StoreDamaged(f"ledger {ledger}: the index of what was offloaded is damaged")
    end, count, data_bytes = _FOOT.unpack_from(checked, len(checked) - _FOOT.size)
    return OffloadIndex(struct.unpack_from(f">{count}Q", checked), end, data_bytes)


def decode_entries(data: Buffer, *, ledger: int) -> Iterator[memoryview]:
    """Yields checked entries, from bytes that begin and end with an entry."""
    view, offset = memoryview(data), 0
    while offset < len(view):
        if offset + _ENTRY.size > len(view):
            raise StoreDamaged(f"ledger {ledger}: an offloaded entry is cut off")
        length, digest = _ENTRY.unpack_from(view, offset)
        offset += _ENTRY.size
        entry = view[offset : offset + length]
        if len(entry) != length or xxh3_64_intdigest(entry) != digest:
            raise StoreDamaged(f"ledger {ledger}: an offloaded entry is damaged")
        offset += length
        yield entry


# Where offloaded ledgers are kept: objects that are written once, read in parts, and deleted.


class OffloadStore(Protocol):
    """A folder of files, or an object store."""

    async def write(self, name: str, parts: AsyncIterator[bytes]) -> None:
        """Writes an object of these parts; durable when it returns."""
        ...

    async def rename(self, name: str, new: str) -> None:
        """Renames an object, at once or not at all; one of the new name is replaced."""
        ...

    async def size(self, name: str) -> int:
        """Returns an object's size; `NotFound` if there is none."""
        ...

    async def read(self, name: str, *, offset: int, length: int) -> bytes: ...

    async def delete(self, name: str) -> None:
        """Deletes an object; does nothing if it is gone."""
        ...


class ArrowOffloadStore:
    """An `OffloadStore` on any file system of pyarrow: local folders, S3, GCS, Azure, HDFS."""

    def __init__(self, file_system: "FileSystem", folder: str) -> None:
        self._file_system = file_system
        self._folder = folder.rstrip("/")

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    async def write(self, name: str, parts: AsyncIterator[bytes]) -> None:
        path, system = self._path(name), self._file_system
        await _blocking(system.create_dir, path.rpartition("/")[0])
        stream = await _blocking(system.open_output_stream, path)
        try:
            async for part in parts:
                await _blocking(stream.write, part)
        finally:
            await _blocking(stream.close)
        await _blocking(self._sync, path)

    async def rename(self, name: str, new: str) -> None:
        path = self._path(new)
        await _blocking(self._file_system.move, self._path(name), path)
        await _blocking(self._sync, path.rpartition("/")[0])
        await _blocking(self._sync, self._folder)

    def _sync(self, path: str) -> None:
        """Makes a file or folder durable: the ledger is deleted after this, and a power cut would
        take the only copy. Object stores are durable by themselves."""
        if self._file_system.type_name == "local":
            file = os.open(path, os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)

    async def size(self, name: str) -> int:
        info = await _blocking(self._file_system.get_file_info, self._path(name))
        if info.size is None:
            raise NotFound(f"{self._path(name)} is not there")
        return int(info.size)

    async def read(self, name: str, *, offset: int, length: int) -> bytes:
        return bytes(await _blocking(self._read, self._path(name), offset, length))

    def _read(self, path: str, offset: int, length: int) -> bytes:
        with self._file_system.open_input_file(path) as file:
            found: bytes = file.read_at(length, offset)
            return found

    async def delete(self, name: str) -> None:
        with contextlib.suppress(NotFound):
            await _blocking(self._file_system.delete_file, self._path(name))


async def _blocking(call: Any, *arguments: Any) -> Any:
    """Runs a call in a thread: the library waits for disks and networks."""
    try:
        return await asyncio.to_thread(call, *arguments)
    except FileNotFoundError as error:
        raise NotFound(f"{arguments[0]} is not there") from error
    except OSError as error:
        raise Unavailable(f"the store of offloaded ledgers failed: {error}") from error


# Closed ledgers are copied to cheap storage, verified, and deleted; readers do not notice.
#
# The copy is read back and compared before the record says that the ledger is offloaded: a store
# that acks a write and keeps something else would otherwise have the only copy
# (`test_a_copy_that_is_not_the_same_leaves_the_ledger_where_it_is`). The ledger is deleted after
# the record names the copy: a crash in between leaves a copy that no record names, or a ledger that
# is found as an orphan, and never a record that names a deleted ledger.

PART_BYTES = 4 << 20


def object_name(meta: LogMeta, ledger: int) -> str:
    return f"{meta.token.hex()}/{ledger:020}.dlof"


class OffloadedReader:
    """A `LedgerReader` of an offloaded ledger's object."""

    def __init__(self, store: OffloadStore, name: str, ledger: int, index: OffloadIndex) -> None:
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

    async def read(self, *, first: int, last: int) -> list[LedgerEntry]:
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
        return [LedgerEntry(number, entry) for number, entry in enumerate(entries, first)]

    async def wait(self, *, after: int, timeout_ms: int) -> tuple[int, bool]:  # noqa: ARG002
        return self.last_confirmed, True

    def confirm(self, last_confirmed: int) -> None:
        """Does nothing: the ledger is closed, and its end known."""

    async def close(self) -> None:
        pass


class OffloadedLedgers:
    """A `LedgerSource`: opens offloaded ledgers from their copies, others from the ledger store."""

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
    """Copies a closed ledger, compares the copy with it, and gives the copy its name.

    Two processes may offload one ledger at once. Each writes under a name of its own attempt first:
    if both wrote to the final name, one would read a half-written object as its copy, or put a
    damaged one in the place of one that was compared and that the record names
    (`test_two_that_offload_the_same_log_at_once_leave_one_good_copy_of_each_ledger`).
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
    """How many entries make about one part."""
    average = max(1, reader.length_bytes // max(1, reader.last_confirmed + 1))
    return max(1, min(PART_BYTES // average, 10_000))
