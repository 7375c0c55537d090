"""The snapshots of one store: which there are, and their saving, receiving, opening and removal.

    GROUP-INDEX.snapshot      a snapshot; it has this name only once it is whole and durable
    NUMBER.temporary          one that is being saved or received
    NUMBER.extra.NAME         an extra file that was copied out for a state machine

Files of the last two kinds are of no use after a crash and go at the next start.
"""

import posixpath
import re
from collections.abc import Coroutine, Generator, Iterator
from itertools import chain, count, islice
from typing import Any, Final

import msgspec

from raftwood.base import files as seam
from raftwood.base.errors import (
    AlreadyExists,
    NotFound,
    Overloaded,
    StoreDamaged,
    TooLarge,
)
from raftwood.base.files import Files, perform
from raftwood.base.logs import get_logger
from raftwood.raft.core import ConfState
from raftwood.raft.host.snapshots.container import Encoder, SnapshotMeta
from raftwood.raft.host.snapshots.reading import SnapshotReader, damaged, read_meta
from raftwood.raft.host.snapshots.receiving import SNAPSHOT_BYTES_MAX, Announced, Receiver
from raftwood.raft.host.snapshots.writing import (
    PIECE_BYTES,
    ExtraFileList,
    PieceFile,
    told,
    write_container,
)
from raftwood.raft.state_machine import Stopped

_log = get_logger("snapshots")

RECEIVERS_MAX: Final = 64
"""Snapshots that are received at once; each may hold a chunk in memory."""

_SNAPSHOT: Final = re.compile(r"(0|[1-9][0-9]{0,19})-(0|[1-9][0-9]{0,19})\.snapshot")
_SCRATCH: Final = re.compile(r"[0-9]+\.(temporary|extra\..+)")

Key = tuple[int, int]
"""Group and index."""


def snapshot_key(name: str) -> Key | None:
    """What the name of a snapshot's file says; None for other files."""
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
        self._stored: dict[Key, StoredSnapshot] = {}
        self._committing: set[Key] = set()
        self._receivers: dict[int, Receiver] = {}
        self.damaged: dict[Key, StoreDamaged] = {}
        """Snapshots whose headers were found bad at the start, by group and index."""

    @classmethod
    async def recover(
        cls, files: Files, folder: str, *, piece_bytes: int = PIECE_BYTES
    ) -> "SnapshotFiles":
        """Open a store's folder of snapshots, making it where there is none.

        Removes what a crash left unfinished. Files of unknown names are left alone.
        """
        self = cls(files, folder, piece_bytes=piece_bytes)
        parent = posixpath.dirname(folder) or "."
        with told(folder):
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
        with told(folder):
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
        """Store a state machine's snapshot; None, with nothing left, where it was stopped.

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
            encoder = Encoder(meta)
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
        """A reader of one snapshot, its header verified again; `NotFound` where there is none."""
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
    ) -> Receiver:
        """Take in a snapshot from another store; one that comes for the same group is aborted."""
        announced = Announced(group, index, term, size, sender)
        self._check_new(group, index)
        if size > SNAPSHOT_BYTES_MAX:
            raise TooLarge(f"{announced} has {size} bytes, above {SNAPSHOT_BYTES_MAX}")
        older = self._receivers.get(group)
        if older is None and len(self._receivers) >= RECEIVERS_MAX:
            raise Overloaded(f"{RECEIVERS_MAX} snapshots are being received: try again later")
        receiver = Receiver(
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

    def _forget_receiver(self, receiver: Receiver) -> None:
        if self._receivers.get(receiver.announced.group) is receiver:
            del self._receivers[receiver.announced.group]

    async def remove(self, group: int, index: int) -> None:
        """Remove a snapshot, durably; does nothing where there is none."""
        await self._remove([(group, index)])

    async def remove_group(self, group: int) -> None:
        """Remove all that is there of a group and abort what comes; no save may be under way."""
        receiver = self._receivers.get(group)
        if receiver is not None:
            await receiver.abort()
        await self._remove([key for key in (*self._stored, *self.damaged) if key[0] == group])

    async def _remove(self, keys: list[Key]) -> None:
        removals: list[seam.Operation] = []
        for key in keys:
            if key in self._stored or key in self.damaged:
                self._stored.pop(key, None)
                self.damaged.pop(key, None)
                removals.append(seam.Unlink(self._path(*key)))
        if removals:
            with told(self._folder):
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
