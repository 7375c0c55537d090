"""The snapshots on a store's disk: saved, received from another store, read and removed.

    snapshots = await SnapshotFiles.recover(environment.files, f"{data}/snapshots")
    extra = ExtraFileList()
    chunks = machine.save_snapshot(extra, stopped)
    stored = await snapshots.save(meta, chunks, extra, stopped)
    async with await snapshots.open(stored.group, stored.index) as reader:
        files = await reader.extract_extra()
        await machine.recover_from_snapshot(reader.chunks(), files, stopped)

Names of files:

    GROUP-INDEX.snapshot      a snapshot; it has this name only once it is whole and durable
    NUMBER.temporary          one that is being saved or received
    NUMBER.extra.NAME         an extra file that was copied out for a state machine

Files of the last two kinds are of no use after a crash and go at the next start.

A snapshot is written into a temporary file, piece by piece, which then gets its name in one step: a
state machine restored from half a snapshot would differ from all others in silence. Test:
tests/assurance/raft/test_snapshot_images::
test_snapshots_are_whole_or_absent_in_every_crash_image
A piece is about a megabyte, so that memory is bounded and the loop goes on between two of them.
Room is reserved piece by piece, where a full disk shows. The file is synced every few pieces: the
disk's writing lane serves the log's commits too, and one sync of a large file would hold them up
(test_snapshot_files::test_a_large_save_is_synced_as_it_goes). A snapshot from another store is
verified as it comes.
"""

import asyncio
import errno
import posixpath
import re
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import contextmanager
from itertools import chain, count, islice
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from xxhash import xxh3_64_intdigest

from raftwood.base import files as seam
from raftwood.base.errors import (
    AlreadyExists,
    Cancelled,
    DiskFull,
    NotFound,
    OutOfRange,
    Overloaded,
    ProtocolError,
    StoreDamaged,
    StoreError,
    TooLarge,
    UnsupportedVersion,
)
from raftwood.base.files import NO_ROOM, Buffer, Files, perform
from raftwood.base.logs import get_logger
from raftwood.base.names import checked_name
from raftwood.raft.core import ConfState
from raftwood.raft.snapshot_format import (
    END_BYTES,
    EXTRA_FILES_MAX,
    SnapshotDecoder,
    SnapshotEncoder,
    SnapshotFrame,
    SnapshotFrameKind,
    SnapshotMeta,
    claims_no_files,
)
from raftwood.raft.state_machine import Stopped

_log = get_logger("snapshots")

PIECE_BYTES: Final = 1 << 20
_PIECE_BUFFERS_MAX: Final = 512
"""A state of many small chunks must not hold the loop until they fill a piece."""
_PIECES_PER_SYNC: Final = 8


@contextmanager
def as_store_errors(path: str) -> Iterator[None]:
    """Turns errors of the system during operations on one file into errors of a store."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFull(f"no room for {path} ({error}): free space on the disk") from error
        if error.errno == errno.ENOENT:
            raise NotFound(f"{path} is not there, or no longer ({error})") from error
        raise StoreError(f"cannot use {path}: {error}; check the disk and the system") from error


class ExtraFileList:
    """Collects the files that a state machine adds to its snapshot."""

    def __init__(self) -> None:
        self.paths: dict[str, str] = {}

    def add(self, name: str, path: str) -> None:
        """Takes a file; it must stay unchanged until the save has ended."""
        checked_name("extra file", name)
        if name in self.paths:
            raise AlreadyExists(f"the snapshot has an extra file {name!r} already: name it anew")
        if len(self.paths) >= EXTRA_FILES_MAX:
            raise TooLarge(f"a snapshot takes at most {EXTRA_FILES_MAX} extra files: join some")
        self.paths[name] = path


class PieceFile:
    """A file that is written from its beginning to its end, and can be dropped at any moment."""

    def __init__(self, files: Files, path: str, *, piece_bytes: int) -> None:
        self._files = files
        self.path = path
        self._piece_bytes = piece_bytes
        self._buffers: list[Buffer] = []
        self._waiting = 0
        self._written = 0
        self._pieces = 0
        self._names = [path]

    async def create(self) -> None:
        with as_store_errors(self.path):
            await perform(
                self._files, seam.Open(self.path, create=True), seam.Truncate(self.path, 0)
            )

    async def add(self, *buffers: Buffer) -> None:
        """Takes more bytes; writes them once there are enough for a piece."""
        self._buffers += buffers
        self._waiting += sum(map(len, buffers))
        if self._waiting >= self._piece_bytes or len(self._buffers) >= _PIECE_BUFFERS_MAX:
            await self.flush()

    async def flush(self) -> None:
        if not self._waiting:
            return
        offset, buffers = self._written, self._buffers
        self._written += self._waiting
        self._buffers, self._waiting = [], 0
        self._pieces += 1
        operations: list[seam.Operation] = [
            seam.Preallocate(self.path, self._written),
            seam.Write(self.path, offset, buffers),
        ]
        if self._pieces % _PIECES_PER_SYNC == 0:
            operations.append(seam.DataSync(self.path))
        with as_store_errors(self.path):
            await perform(self._files, *operations)

    async def close(self) -> None:
        """Writes the rest, for a file that may be gone after a crash."""
        await self.flush()
        with as_store_errors(self.path):
            await perform(self._files, seam.Close(self.path))

    async def commit(self, target: str, folder: str) -> None:
        """Writes the rest and gives the file its name; durable when this returns."""
        await self.flush()
        self._names.append(target)
        with as_store_errors(target):
            await perform(
                self._files,
                seam.DataSync(self.path),
                seam.Rename(self.path, target),
                seam.Close(target),
                seam.SyncDirectory(folder),
            )

    async def discard(self) -> None:
        """Removes the file, whichever name it has by now.

        The last name goes first, in this turn: only it may be given to another file later.
        """
        for name in reversed(self._names):
            await remove_scratch(self._files, name)


async def remove_scratch(files: Files, path: str) -> None:
    """Removes a useless file; if that fails, the next start removes it."""
    try:
        await perform(files, seam.Unlink(path))
    except FileNotFoundError:
        pass
    except OSError as error:
        _log.warning("cannot remove a file of no use", path=path, error=str(error))


async def write_container(
    file: PieceFile,
    encoder: SnapshotEncoder,
    chunks: Iterable[bytes],
    extra: ExtraFileList,
    stopped: Stopped,
    *,
    files: Files,
) -> bool:
    """Writes all but the name; False if it was stopped."""
    await file.create()
    await file.add(encoder.header)
    for chunk in chunks:
        if stopped():
            return False
        await file.add(*encoder.chunk(chunk))
    for name, path in extra.paths.items():
        await file.add(*encoder.file(name))
        offset, length = 0, PIECE_BYTES
        while length == PIECE_BYTES:
            if stopped():
                return False
            with as_store_errors(path):
                (data,) = await perform(files, seam.Read(path, offset, PIECE_BYTES))
            length = len(data)
            offset += length
            if length:
                await file.add(*encoder.file_piece(data))
    await file.add(*encoder.end())
    await file.flush()
    return not stopped()


RAW_BYTES_MAX: Final = 8 << 20
"""The most that is read at once for another store."""

_META_READ_BYTES: Final = 64 << 10

REMEDY: Final = (
    "remove this file and let the group's leader send a snapshot again, or restore it from a backup"
)


def damaged(path: str, error: StoreDamaged) -> StoreDamaged:
    return StoreDamaged(f"{path} is damaged: {error.message}; {REMEDY}")


async def read_meta(files: Files, path: str) -> tuple[SnapshotMeta, int]:
    """A snapshot's meta and size, with its header verified."""
    with as_store_errors(path):
        (size,) = await perform(files, seam.Size(path))
    parts = _Parts(files, path, size or 0, read_bytes=_META_READ_BYTES)
    while parts.meta is None:
        await parts.read_more()
    return parts.meta, size


class _Parts:
    """The frames of a container, each verified; ends only if the container is complete.

    Not a generator: one that is left in the middle need not be closed.
    """

    def __init__(
        self, files: Files, path: str, size: int, *, read_bytes: int = PIECE_BYTES
    ) -> None:
        self._files = files
        self._path = path
        self._size = size
        self._offset = 0
        self._read_bytes = read_bytes
        self._decoder = SnapshotDecoder()
        self._ready: deque[SnapshotFrame] = deque()

    @property
    def meta(self) -> SnapshotMeta | None:
        return self._decoder.meta

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SnapshotFrame:
        while not self._ready:
            if self._decoder.ended and self._offset == self._size:
                raise StopAsyncIteration
            await self.read_more()
        return self._ready.popleft()

    async def read_more(self) -> None:
        with as_store_errors(self._path):
            (data,) = await perform(
                self._files, seam.Read(self._path, self._offset, self._read_bytes)
            )
        self._offset += len(data)
        try:
            if not data:
                self._decoder.finish()
                raise StoreDamaged(f"it ends at offset {self._offset}, and had {self._size} bytes")
            self._ready += self._decoder.feed(data)
        except StoreDamaged as error:
            raise damaged(self._path, error) from None
        except UnsupportedVersion as error:
            raise UnsupportedVersion(f"{self._path}: {error.message}") from None


class _Chunks:
    """The chunks of the state among the parts."""

    def __init__(self, parts: _Parts) -> None:
        self._parts = parts

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        async for part in self._parts:
            if part.kind is SnapshotFrameKind.CHUNK:
                return part.payload
        raise StopAsyncIteration


class SnapshotReader:
    """One stored snapshot; close it when done, or use it in `async with`.

    `NotFound` from any call where the snapshot was removed meanwhile.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        meta: SnapshotMeta,
        size: int,
        scratch_path: Callable[[str], str],
    ) -> None:
        self._files = files
        self._path = path
        self.meta = meta
        self.size = size
        """Bytes of the container."""
        self._scratch_path = scratch_path
        self._extracted: list[PieceFile] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def chunks(self) -> AsyncIterator[bytes]:
        """The state's chunks as they were saved; `StoreDamaged` at the latest in place of the end.

        A state that was recovered from them is good only if the iteration came to its end.
        """
        return _Chunks(_Parts(self._files, self._path, self.size))

    async def extract_extra(self) -> dict[str, str]:
        """Copies the extra files out: name → path of a file that is there until `close`.

        The receiver may rename it to keep it. `StoreDamaged`, with nothing left, where any of the
        snapshot is bad.
        """
        if claims_no_files(await self.read_raw(max(0, self.size - END_BYTES), END_BYTES)):
            return {}
        found: dict[str, str] = {}
        file: PieceFile | None = None
        try:
            async for part in _Parts(self._files, self._path, self.size):
                if part.kind is SnapshotFrameKind.FILE_PIECE and file is not None:
                    await file.add(part.payload)
                elif part.kind is SnapshotFrameKind.FILE:
                    if file is not None:
                        await file.close()
                    name = part.payload.decode()
                    file = self._new_file(name)
                    found[name] = file.path
                    await file.create()
            if file is not None:
                await file.close()
        except BaseException:
            await self.close()
            raise
        return found

    def _new_file(self, name: str) -> PieceFile:
        file = PieceFile(self._files, self._scratch_path(name), piece_bytes=PIECE_BYTES)
        self._extracted.append(file)
        return file

    async def read_raw(self, offset: int, length: int) -> Buffer:
        """Bytes of the container as they are, fewer only at its end; the receiver verifies them."""
        if not 0 <= offset <= self.size:
            raise OutOfRange(f"{self._path} has {self.size} bytes; there is none at {offset}")
        if length > RAW_BYTES_MAX:
            raise TooLarge(f"{length} bytes are too many for one read: ask for {RAW_BYTES_MAX}")
        length = min(length, self.size - offset)
        with as_store_errors(self._path):
            (data,) = await perform(self._files, seam.Read(self._path, offset, length))
        if len(data) < length:
            raise damaged(self._path, StoreDamaged(f"it ends at offset {offset + len(data)}"))
        return data  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Removes what was extracted."""
        extracted, self._extracted = self._extracted, []
        for file in extracted:
            await file.discard()


SNAPSHOT_BYTES_MAX: Final = 1 << 40
"""No larger snapshot is received."""


class AnnouncedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot as its sender announced it."""

    group: int
    index: int
    term: int
    size: int
    sender: int

    def __str__(self) -> str:
        return f"the snapshot of group {self.group} at {self.index} from store {self.sender}"


class SnapshotReceiver:
    """One snapshot on its way in; any error drops it, and the sender begins again.

    Calls are served one after another. It waits for ever for a sender that is gone, so its owner
    aborts it after a time, or when another transfer of the group begins.
    """

    def __init__(
        self,
        announced: AnnouncedSnapshot,
        file: PieceFile,
        *,
        commit: Callable[[PieceFile, SnapshotMeta, int], Awaitable[None]],
        forget: Callable[["SnapshotReceiver"], None],
    ) -> None:
        self.announced = announced
        self.received = 0
        """Bytes taken so far: where the next piece has to begin."""
        self._file = file
        self._commit = commit
        self._forget = forget
        self._decoder = SnapshotDecoder()
        self._last_piece: tuple[int, int, int] | None = None
        self._turn = asyncio.Lock()
        self._is_open = True
        self._is_kept = False

    async def begin(self) -> None:
        """Creates the file; called once, before the receiver is handed out."""
        self._check_open()
        await self._file.create()

    async def write(self, offset: int, data: Buffer) -> None:
        """Takes the next piece; ignores a repetition of the last one.

        `OutOfRange` for one from elsewhere, which changes nothing. `ProtocolError` where the bytes
        are no snapshot or not the announced one, `DiskFull` or `StoreError` where the disk fails.
        """
        async with self._turn:
            self._check_open()
            piece = (offset, len(data), xxh3_64_intdigest(data))
            if piece == self._last_piece:
                return
            if offset != self.received:
                raise OutOfRange(
                    f"{self.announced} goes on at {self.received}, not at {offset}: send from there"
                )
            try:
                self._verify(data)
                await self._file.add(data)
                await self._file.flush()
            except BaseException:
                # Also where only the waiting was given up: how the write ended is unknown then.
                await self.abort()
                raise
            self._check_open()
            self.received += len(data)
            self._last_piece = piece

    async def finish(self) -> None:
        """Keeps the snapshot: durable when this returns; `ProtocolError` if it is not whole.

        Said again, it does nothing.
        """
        async with self._turn:
            if self._is_kept:
                return
            self._check_open()
            try:
                with _blamed(self.announced):
                    self._decoder.finish()
                if self.received != self.announced.size:
                    raise ProtocolError(
                        f"{self.announced} has {self.received} bytes, not the announced "
                        f"{self.announced.size}: send it again"
                    )
                meta = self._decoder.meta
                assert meta is not None
                self._close()
                await self._commit(self._file, meta, self.received)
                self._is_kept = True
            except BaseException:
                self._close()
                await self._file.discard()
                raise

    async def abort(self) -> None:
        """Drops what was received; does nothing if it was kept or dropped already."""
        if self._is_open:
            self._close()
            await self._file.discard()

    def _close(self) -> None:
        self._is_open = False
        self._forget(self)

    def _check_open(self) -> None:
        if not self._is_open:
            raise Cancelled(f"{self.announced} is no longer being received: begin it again")

    def _verify(self, data: Buffer) -> None:
        if self.received + len(data) > self.announced.size:
            raise TooLarge(
                f"{self.announced} is larger than the announced {self.announced.size} bytes: "
                "announce its size"
            )
        with _blamed(self.announced):
            self._decoder.feed(data)
        meta, said = self._decoder.meta, self.announced
        if meta is not None and (meta.group, meta.index, meta.term) != (
            said.group,
            said.index,
            said.term,
        ):
            raise ProtocolError(
                f"{said} is one of group {meta.group} at {meta.index}, term {meta.term}: announce "
                "what is sent"
            )


@contextmanager
def _blamed(announced: AnnouncedSnapshot) -> Iterator[None]:
    """Damage in what a peer sent is the peer's, and not of this store."""
    try:
        yield
    except StoreDamaged as error:
        raise ProtocolError(
            f"{announced} is damaged: {error.message}; send it again, or another one where the "
            "sender's copy is bad"
        ) from None


RECEIVERS_MAX: Final = 64
"""Snapshots that are received at once; each may hold a chunk in memory."""

_SNAPSHOT: Final = re.compile(r"(0|[1-9][0-9]{0,19})-(0|[1-9][0-9]{0,19})\.snapshot")
_SCRATCH: Final = re.compile(r"[0-9]+\.(temporary|extra\..+)")

SnapshotKey = tuple[int, int]
"""Group and index."""


def snapshot_key(name: str) -> SnapshotKey | None:
    """Group and index from the name of a snapshot's file; None for other files."""
    match = _SNAPSHOT.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


class StoredSnapshot(msgspec.Struct, frozen=True):
    """A snapshot that is there; its host data is read with `SnapshotFiles.open`."""

    group: int
    index: int
    term: int
    configuration: ConfState
    addresses: dict[int, str]
    size: int
    """Bytes of the container."""


class SnapshotFiles:
    """All snapshots of one store; use `recover`."""

    def __init__(self, files: Files, folder: str, *, piece_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._piece_bytes = piece_bytes
        self._numbers = count(1)
        self._stored: dict[SnapshotKey, StoredSnapshot] = {}
        self._committing: set[SnapshotKey] = set()
        self._receivers: dict[int, SnapshotReceiver] = {}
        self.damaged: dict[SnapshotKey, StoreDamaged] = {}
        """Snapshots whose headers were found bad at the start, by group and index."""

    @classmethod
    async def recover(
        cls, files: Files, folder: str, *, piece_bytes: int = PIECE_BYTES
    ) -> "SnapshotFiles":
        """Opens a store's folder of snapshots, creating it if there is none.

        Removes what a crash left unfinished. Files of unknown names are left alone.
        """
        self = cls(files, folder, piece_bytes=piece_bytes)
        parent = posixpath.dirname(folder) or "."
        with as_store_errors(folder):
            await perform(files, seam.MakeDirectory(folder), seam.SyncDirectory(parent))
            (names,) = await perform(files, seam.ListDirectory(folder))
        removals: list[seam.Operation] = []
        for name in names:
            if match := _SNAPSHOT.fullmatch(name):
                await self._take(int(match[1]), int(match[2]))
            elif _SCRATCH.fullmatch(name):
                removals.append(seam.Unlink(f"{folder}/{name}"))
            else:
                _log.warning("unknown file among the snapshots is left alone", name=name)
        with as_store_errors(folder):
            # The sync also makes names durable whose process was killed before its own sync.
            await perform(files, *removals, seam.SyncDirectory(folder))
        return self

    async def _take(self, group: int, index: int) -> None:
        path = self._path(group, index)
        try:
            meta, size = await read_meta(self._files, path)
            if (meta.group, meta.index) != (group, index):
                said = f"it is one of group {meta.group} at {meta.index}"
                raise damaged(path, StoreDamaged(said))
        except StoreDamaged as error:
            _log.error("a snapshot is damaged", error=error.message)
            self.damaged[group, index] = error
        else:
            self._stored[group, index] = _stored(meta, size)

    def stored(self) -> list[StoredSnapshot]:
        """What is there, by group and index in ascending order."""
        return [self._stored[key] for key in sorted(self._stored)]

    def save(
        self, meta: SnapshotMeta, chunks: Iterator[bytes], extra: ExtraFileList, stopped: Stopped
    ) -> Coroutine[Any, Any, StoredSnapshot | None]:
        """Stores a state machine's snapshot; None, with nothing left, if it was stopped.

        The first chunk is taken by the call itself, the others while the result is awaited. One
        save per group at a time. `AlreadyExists` where there is one of that index, `DiskFull` or
        `StoreError` where the disk fails, what `chunks` raises; nothing is left then either.
        """
        first = list(islice(chunks, 1))
        return self._save(meta, first, chunks, extra, stopped)

    async def _save(
        self,
        meta: SnapshotMeta,
        first: list[bytes],
        others: Iterator[bytes],
        extra: ExtraFileList,
        stopped: Stopped,
    ) -> StoredSnapshot | None:
        file = self._new_file()
        try:
            self._check_new(meta.group, meta.index)
            encoder = SnapshotEncoder(meta)
            chunks = chain(first, others)
            is_whole = await write_container(
                file, encoder, chunks, extra, stopped, files=self._files
            )
            if is_whole:
                await self._commit(file, meta, encoder.length)
                return self._stored[meta.group, meta.index]
        except BaseException:
            await file.discard()
            raise
        finally:
            if isinstance(others, Generator):
                others.close()
        await file.discard()
        return None

    async def open(self, group: int, index: int) -> SnapshotReader:
        """Opens a reader of one snapshot and verifies its header; `NotFound` if there is none."""
        if (group, index) in self.damaged:
            raise StoreDamaged(self.damaged[group, index].message)
        expected = self._stored.get((group, index))
        if expected is None:
            raise NotFound(f"there is no snapshot of group {group} at {index}: list what there is")
        path = self._path(group, index)
        meta, size = await read_meta(self._files, path)
        if _stored(meta, size) != expected:
            raise damaged(path, StoreDamaged("it is not the one that was there"))
        return SnapshotReader(self._files, path, meta, size, self._scratch_path)

    async def begin_receive(
        self, *, group: int, index: int, term: int, size: int, sender: int
    ) -> SnapshotReceiver:
        """Receives a snapshot from another store; aborts an earlier one of the same group."""
        announced = AnnouncedSnapshot(group, index, term, size, sender)
        self._check_new(group, index)
        if size > SNAPSHOT_BYTES_MAX:
            raise TooLarge(f"{announced} has {size} bytes, above {SNAPSHOT_BYTES_MAX}")
        older = self._receivers.get(group)
        if older is None and len(self._receivers) >= RECEIVERS_MAX:
            raise Overloaded(f"{RECEIVERS_MAX} snapshots are being received: try again later")
        receiver = SnapshotReceiver(
            announced, self._new_file(), commit=self._commit, forget=self._forget_receiver
        )
        self._receivers[group] = receiver
        try:
            if older is not None:
                await older.abort()
            await receiver.begin()
        except BaseException:
            await receiver.abort()
            raise
        return receiver

    def _forget_receiver(self, receiver: SnapshotReceiver) -> None:
        if self._receivers.get(receiver.announced.group) is receiver:
            del self._receivers[receiver.announced.group]

    async def remove(self, group: int, index: int) -> None:
        """Removes a snapshot, durably; does nothing if there is none."""
        await self._remove([(group, index)])

    async def remove_group(self, group: int) -> None:
        """Removes all snapshots of a group and aborts incoming ones; no save may be under way."""
        receiver = self._receivers.get(group)
        if receiver is not None:
            await receiver.abort()
        await self._remove([key for key in (*self._stored, *self.damaged) if key[0] == group])

    async def _remove(self, keys: list[SnapshotKey]) -> None:
        removals: list[seam.Operation] = []
        for key in keys:
            if key in self._stored or key in self.damaged:
                self._stored.pop(key, None)
                self.damaged.pop(key, None)
                removals.append(seam.Unlink(self._path(*key)))
        if removals:
            with as_store_errors(self._folder):
                await perform(self._files, *removals, seam.SyncDirectory(self._folder))

    async def _commit(self, file: PieceFile, meta: SnapshotMeta, size: int) -> None:
        key = meta.group, meta.index
        self._check_new(*key)
        self._committing.add(key)
        try:
            await file.commit(self._path(*key), self._folder)
            self._stored[key] = _stored(meta, size)
        finally:
            self._committing.discard(key)

    def _check_new(self, group: int, index: int) -> None:
        """A snapshot is never replaced: somebody may be reading it."""
        key = group, index
        if key in self._stored or key in self._committing or key in self.damaged:
            raise AlreadyExists(
                f"there is a snapshot of group {group} at {index} already: use it, or remove it "
                "first"
            )

    def _path(self, group: int, index: int) -> str:
        return f"{self._folder}/{group}-{index}.snapshot"

    def _new_file(self) -> PieceFile:
        path = f"{self._folder}/{next(self._numbers)}.temporary"
        return PieceFile(self._files, path, piece_bytes=self._piece_bytes)

    def _scratch_path(self, name: str) -> str:
        return f"{self._folder}/{next(self._numbers)}.extra.{name}"


def _stored(meta: SnapshotMeta, size: int) -> StoredSnapshot:
    return StoredSnapshot(
        meta.group, meta.index, meta.term, meta.configuration, meta.addresses, size
    )
