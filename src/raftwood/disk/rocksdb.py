"""The `KvEngine` seam over RocksDB: one engine, or many below one folder.

RocksDB's own write-ahead log is off: the log of the engine's owner is the only one, and the owner
replays from it what was not flushed. rocksdict holds the GIL in get, write, iterators, checkpoint
and open, and releases it in flush and in a get of a list; so those two run in threads, and a value
has a size limit that keeps the others short.

Faults of rocksdict 0.3 that this module avoids:
- its `items()` ends silently at a damaged block, so scans walk the raw iterator and ask its status;
- a `ReadOptions` with a bound must outlive the iterator, which keeps only a pointer into it;
- `set_iterate_lower_bound` sets the upper bound;
- a range deletion whose end is before its start fails, and every later write with it.

Beside each engine is a stamp, written after each flush: the version of its format, and the sequence
that was surely flushed. RocksDB takes a manifest whose end is missing for the trace of a crash, and
forgets every file named there; the stamp shows that more was durable. A stamp older than the data
is right, so a crash between flush and stamp does no harm.
"""

import asyncio
import os
import shutil
import struct
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import rocksdict
import xxhash

from raftwood.base.errors import (
    AlreadyExists,
    DiskFull,
    InternalError,
    NotFound,
    RaftwoodError,
    ShuttingDown,
    StoreDamaged,
    StoreError,
    StoreLocked,
    TooLarge,
    UnsupportedVersion,
)
from raftwood.base.seams import Delete, DeleteRange, Mutation, Put
from raftwood.base.versions import unsupported

NAME: Final = "RAFTWOOD-KV"
MAGIC: Final = b"RWKV"
VERSION: Final = 1
_BODY: Final = struct.Struct("<4sIQ")
_CHECKSUM: Final = struct.Struct("<Q")


def encode_stamp(sequence: int) -> bytes:
    """Encodes magic, version, sequence and their checksum."""
    body = _BODY.pack(MAGIC, VERSION, sequence)
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def decode_stamp(data: bytes, folder: str) -> int:
    """Decodes the sequence; raises an error for the folder's user if the stamp is bad."""
    if len(data) >= _BODY.size:
        magic, version, sequence = _BODY.unpack_from(data)
        if magic == MAGIC and version > VERSION:
            raise unsupported(f"key-value engine {folder!r}", version, VERSION)
        if data == encode_stamp(int(sequence)):
            return int(sequence)
    raise StoreDamaged(
        f"key-value engine {folder!r} is damaged: its file {NAME} is not as it was written; "
        "restore the folder from a checkpoint or a replica"
    )


def read_stamp(folder: str) -> int:
    """Reads the flushed sequence; 0 for a folder without a stamp and without data."""
    try:
        with open(os.path.join(folder, NAME), "rb") as stream:
            return decode_stamp(stream.read(1024), folder)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreError(
            f"key-value engine {folder!r} cannot be read: {error.strerror}; check the folder's "
            "path and permissions"
        ) from error


def write_stamp(folder: str, sequence: int) -> None:
    """Replaces the stamp, durably."""
    path = os.path.join(folder, NAME)
    temporary = path + ".new"
    with open(temporary, "wb") as stream:
        stream.write(encode_stamp(sequence))
        stream.flush()
        os.fdatasync(stream.fileno())
    os.replace(temporary, path)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


KEY_BYTES_MAX: Final = 64 << 10
VALUE_BYTES_MAX: Final = 4 << 20
"""A put holds the GIL while it copies; 4 MiB takes about 2 ms."""

KEYS_ON_LOOP_MAX: Final = 1
"""More keys than this are fetched in a thread: a cold read may wait for the disk."""


class RocksEngine:
    """One RocksDB in one folder; use `await RocksEngine.open(folder)`."""

    def __init__(
        self, folder: str, database: "rocksdict.Rdict", *, is_read_only: bool = False
    ) -> None:
        self._folder = folder
        self._is_read_only = is_read_only
        self._database: rocksdict.Rdict | None = database
        self._unlogged = rocksdict.WriteOptions()
        # An attribute, unlike in the library's type stubs.
        self._unlogged.disable_wal = True  # type: ignore[method-assign, assignment]
        self._scans: weakref.WeakSet[_Scan] = weakref.WeakSet()
        self._flushing = threading.Lock()
        # Closing while a thread reads would leave it with a half-closed database.
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @classmethod
    async def open(
        cls,
        folder: str,
        *,
        cache_bytes: int = 64 << 20,
        write_buffer_bytes: int = 64 << 20,
        is_read_only: bool = False,
    ) -> "RocksEngine":
        """Opens the engine in a folder, creating both if missing.

        A read-only one, such as a checkpoint, is not changed on disk.
        """
        durable_sequence = await asyncio.to_thread(read_stamp, folder)
        options = _options(cache_bytes=cache_bytes, write_buffer_bytes=write_buffer_bytes)
        try:
            # Opening holds the GIL, so a thread would gain nothing.
            access = rocksdict.AccessType
            database = rocksdict.Rdict(
                folder,
                options,
                access_type=access.read_only() if is_read_only else access.read_write(),
            )
        except Exception as error:
            raise _mapped(error, folder) from error
        engine = cls(folder, database, is_read_only=is_read_only)
        found_sequence = database.latest_sequence_number()
        if found_sequence < durable_sequence:
            # RocksDB takes a truncated manifest for a crash, and forgets what stood behind the cut.
            database.close()
            raise _damaged(
                folder, f"it ends at sequence {found_sequence}, {durable_sequence} was flushed"
            )
        return engine

    def get(self, key: bytes) -> bytes | None:
        database = self._open_database()
        try:
            value: bytes | None = database.get(key)
        except Exception as error:
            raise _mapped(error, self._folder) from error
        return value

    def get_cached(self, key: bytes) -> tuple[bool, bytes | None]:
        database = self._open_database()
        try:
            # A pair, unlike in the library's type stubs.
            found: Any = database.key_may_exist(key, fetch=True)
        except Exception as error:
            raise _mapped(error, self._folder) from error
        # Without a value the key may be on disk, unless the filters exclude it.
        may_be_there, value = found
        return value is not None or not may_be_there, value

    async def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if len(keys) <= KEYS_ON_LOOP_MAX:
            return [self.get(key) for key in keys]
        wanted = list(keys)
        values: list[bytes | None] = await self._in_thread(
            lambda database: database.get(wanted)  # type: ignore[arg-type]
        )
        return values

    def write_batch(self, mutations: Sequence[Mutation]) -> None:
        database = self._open_database()
        batch = rocksdict.WriteBatch(raw_mode=True)
        put = batch.put
        for mutation in mutations:
            if type(mutation) is Put:  # nearly all are
                key, value = mutation.key, mutation.value
                if len(key) > KEY_BYTES_MAX or len(value) > VALUE_BYTES_MAX:
                    raise _too_large(mutation)
                put(key, value)
            elif isinstance(mutation, Delete):
                batch.delete(mutation.key)
            elif isinstance(mutation, DeleteRange) and mutation.start < mutation.end:
                batch.delete_range(mutation.start, mutation.end)
        try:
            database.write(batch, self._unlogged)
        except Exception as error:
            raise _mapped(error, self._folder) from error

    def scan(
        self, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        database = self._open_database()
        scan = _Scan(database, self._folder, start, end, reverse=reverse)
        self._scans.add(scan)
        return scan

    async def flush(self) -> None:
        await self._in_thread(self._flush)

    async def checkpoint(self, folder: str) -> None:
        await asyncio.to_thread(_check_new, folder)
        # A checkpoint flushes with the GIL held; after a flush of our own little is left to do.
        await self.flush()
        database = self._open_database()
        sequence = database.latest_sequence_number()
        try:
            rocksdict.Checkpoint(database).create_checkpoint(folder)
        except Exception as error:
            raise _mapped(error, folder) from error
        await asyncio.to_thread(write_stamp, folder, sequence)

    async def close(self) -> None:
        """Flushes and closes; scans under way end with an error. May be called twice."""
        if (database := self._database) is None:
            return
        self._database = None
        try:
            await self._idle.wait()
        except asyncio.CancelledError:
            self._database = database  # nothing was done yet
            raise
        for scan in list(self._scans):
            scan.stop()
        # In one job, which runs to its end even if the caller is cancelled.
        await self._run(database, self._flush_and_close)

    def _flush_and_close(self, database: "rocksdict.Rdict") -> None:
        try:
            if not self._is_read_only:
                self._flush(database)
        finally:
            # Whether or not the flush succeeded, the lock on the folder is released.
            database.close()

    def _flush(self, database: "rocksdict.Rdict") -> None:
        with self._flushing:
            # Everything before this line is durable after the flush; later writes may not be.
            sequence = database.latest_sequence_number()
            database.flush()
            write_stamp(self._folder, sequence)

    def _open_database(self) -> "rocksdict.Rdict":
        if self._database is None:
            raise _closed(self._folder)
        return self._database

    async def _in_thread(self, work: Callable[["rocksdict.Rdict"], Any]) -> Any:
        return await self._run(self._open_database(), work)

    async def _run(
        self, database: "rocksdict.Rdict", work: Callable[["rocksdict.Rdict"], Any]
    ) -> Any:
        self._busy += 1
        self._idle.clear()

        def run() -> Any:
            try:
                return work(database)
            except RaftwoodError:
                raise
            except Exception as error:
                raise _mapped(error, self._folder) from error

        future = asyncio.get_running_loop().run_in_executor(None, run)
        # Counted down when the thread is done, even if its caller was cancelled before.
        future.add_done_callback(self._thread_done)
        return await asyncio.shield(future)

    def _thread_done(self, future: asyncio.Future[Any]) -> None:
        self._busy -= 1
        if self._busy == 0:
            self._idle.set()
        if not future.cancelled():
            future.exception()


class _Scan(Iterator[tuple[bytes, bytes]]):
    """A scan of the pairs as they were when it began."""

    def __init__(
        self,
        database: "rocksdict.Rdict",
        folder: str,
        start: bytes,
        end: bytes | None,
        *,
        reverse: bool,
    ) -> None:
        self._folder = folder
        self._start = start
        self._reverse = reverse
        self._options = rocksdict.ReadOptions()
        if end is not None:
            self._options.set_iterate_upper_bound(end)
        self._cursor: rocksdict.RdictIter | None = database.iter(self._options)
        self._finished = end is not None and end <= start
        if reverse:
            self._cursor.seek_to_last()
        else:
            self._cursor.seek(start)

    def __iter__(self) -> "_Scan":
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        if self._finished:
            self.stop()
            raise StopIteration
        cursor = self._cursor
        if cursor is None:
            raise _closed(self._folder)
        if not cursor.valid():
            self._finish(cursor)
        key: bytes = cursor.key()
        if self._reverse:
            if key < self._start:
                self._finish(cursor)
            pair = key, cursor.value()
            cursor.prev()
        else:
            pair = key, cursor.value()
            cursor.next()
        return pair

    def stop(self) -> None:
        """Releases the files; the iterator goes before the options that it points into."""
        self._cursor = None

    def _finish(self, cursor: "rocksdict.RdictIter") -> None:
        try:
            cursor.status()
        except Exception as error:
            raise _mapped(error, self._folder) from error
        self._finished = True
        self.stop()
        raise StopIteration


def _check_new(folder: str) -> None:
    if os.path.exists(folder):
        raise AlreadyExists(f"checkpoint folder {folder!r} exists: give a new one")
    parent = os.path.dirname(os.path.abspath(folder))
    if not os.path.isdir(parent):
        raise NotFound(f"checkpoint folder {folder!r} has no folder above it: make {parent!r}")


def _options(*, cache_bytes: int, write_buffer_bytes: int) -> "rocksdict.Options":
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(cache_bytes))
    table.set_bloom_filter(10, False)
    table.set_checksum_type(rocksdict.ChecksumType.xxh3())
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_paranoid_checks(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    # The LOG files are only for people; without bounds they grow for ever.
    options.set_max_log_file_size(1 << 20)
    options.set_keep_log_file_num(4)
    return options


def _mapped(error: Exception, folder: str) -> RaftwoodError:
    """Maps an error of RocksDB, whose status begins the text of a plain Exception."""
    if isinstance(error, rocksdict.DbClosedError):
        return _closed(folder)
    text = " ".join(str(error).split())
    if "lock hold by current process" in text or "While lock file" in text:
        return StoreLocked(
            f"key-value engine {folder!r} is used by another process or another engine of this "
            "one: end it first, or give another data folder"
        )
    if "No space left" in text:
        return DiskFull(f"key-value engine {folder!r}: {text}; make room on the disk")
    if "unsupported format_version" in text or "newer version of RocksDB" in text:
        # A damaged footer reads as an unknown version too, so the message names both.
        return UnsupportedVersion(
            f"key-value engine {folder!r} has a file of an unknown format ({text}): it was written "
            "by a newer version, so use that one; or it is damaged, so restore it from a checkpoint"
        )
    if text.startswith("Corruption") or "No such file or directory" in text:
        return _damaged(folder, text)
    if text.startswith(("IO error", "Invalid argument", "Not implemented")) or "os error" in text:
        return StoreError(
            f"key-value engine {folder!r}: {text}; check the folder's path, permissions and disk"
        )
    return InternalError(f"key-value engine {folder!r}: {text}; look into its LOG file")


def _damaged(folder: str, reason: str) -> StoreDamaged:
    return StoreDamaged(
        f"key-value engine {folder!r} is damaged: {reason}; restore it from a checkpoint or a "
        "replica, and keep the folder for a look at its disk"
    )


def _closed(folder: str) -> ShuttingDown:
    return ShuttingDown(f"key-value engine {folder!r} is closed: open it again")


def _too_large(mutation: Put) -> TooLarge:
    return TooLarge(
        f"a pair of {len(mutation.key)} and {len(mutation.value)} bytes is above the limit of "
        f"{KEY_BYTES_MAX} for a key and {VALUE_BYTES_MAX} for a value: split the value"
    )


class RocksFolders:
    """Opens and removes engines by the names of their folders."""

    def __init__(
        self, path: str, *, cache_bytes: int = 64 << 20, write_buffer_bytes: int = 64 << 20
    ) -> None:
        self._path = path.rstrip("/")
        self._cache_bytes = cache_bytes
        self._write_buffer_bytes = write_buffer_bytes

    def folder(self, name: str) -> str:
        return f"{self._path}/{name}"

    async def open(self, folder: str, *, is_read_only: bool = False) -> RocksEngine:
        """Opens the engine in a folder, or creates one."""
        if not is_read_only:
            await asyncio.to_thread(os.makedirs, self._path, exist_ok=True)
        return await RocksEngine.open(
            folder,
            cache_bytes=self._cache_bytes,
            write_buffer_bytes=self._write_buffer_bytes,
            is_read_only=is_read_only,
        )

    async def remove(self, name: str) -> None:
        """Removes a folder and all in it; does nothing if it is gone."""
        try:
            await asyncio.to_thread(shutil.rmtree, self.folder(name))
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(
                f"{self.folder(name)} cannot be removed: {error.strerror}; check its permissions"
            ) from error

    async def names(self) -> list[str]:
        """Returns the names of all folders, in order."""
        try:
            return sorted(await asyncio.to_thread(os.listdir, self._path))
        except FileNotFoundError:
            return []
