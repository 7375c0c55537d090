"""A file system in memory that knows what is durable and what is not; it knows no time.

Contents become durable with `DataSync`, names with `SyncDirectory` of the directory they stand in.
`Session` is one process's use of it: descriptors and locks, gone when the process ends.
"""

import errno
import functools
import os
import posixpath
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from raftwood.base import files
from raftwood.simulation.content import Content
from raftwood.simulation.survival import DataChange, Fate, survivors

_UNLIMITED_BYTES = 1 << 40


class Inode:
    """A file, whatever its name."""

    __slots__ = ("cached", "changes", "durable", "lock_holder")

    def __init__(self, content: Content | None = None) -> None:
        self.cached = content or Content()
        self.durable = Content() if content is None else content.copy()
        self.changes: list[DataChange] = []
        self.lock_holder: Session | None = None


class _NameChange(msgspec.Struct):
    """An unsynced change of a directory; durable when all its `parents` were synced."""

    kind: str
    path: str
    target: str
    inode: Inode | None
    parents: list[str]


class Session:
    """The open files of one process."""

    def __init__(self) -> None:
        self.opened: dict[str, Inode] = {}

    def inode(self, path: str) -> Inode:
        found = self.opened.get(path)
        if found is None:
            raise OSError(errno.EBADF, "open it first", path)
        return found

    def close(self, path: str) -> None:
        inode = self.opened.pop(path, None)
        if inode is not None and inode.lock_holder is self:
            inode.lock_holder = None

    def end(self) -> None:
        for path in list(self.opened):
            self.close(path)


class FileSystem:
    """Files by path, as seen now and as durable."""

    def __init__(self, directories: Iterable[str] = ()) -> None:
        self.files: dict[str, Inode] = {}
        self.directories: dict[str, None] = dict.fromkeys(("", "/", "."))
        self.durable_files: dict[str, Inode] = {}
        self.durable_directories = dict(self.directories)
        self.name_changes: list[_NameChange] = []
        self.capacity_bytes: int | None = None
        for path in directories:
            self._make_directories(normal_path(path))
        self.sync_all()

    # Operations.

    def apply(self, session: Session, operation: files.Operation) -> Any:
        """Run one operation; answers its result or raises OSError."""
        return _APPLY[type(operation)](self, session, operation)

    def _open(self, session: Session, operation: files.Open) -> None:
        path = normal_path(operation.path)
        if path in session.opened:
            return
        inode = self.files.get(path)
        if inode is None:
            if path in self.directories:
                raise _error(errno.EISDIR, path)
            if not operation.create or _parent(path) not in self.directories:
                raise _error(errno.ENOENT, path)
            inode = self.files[path] = Inode()
            self._name_change("create", path, inode=inode)
        session.opened[path] = inode

    def _close(self, session: Session, operation: files.Close) -> None:
        session.close(normal_path(operation.path))

    def _preallocate(self, session: Session, operation: files.Preallocate) -> None:
        inode = session.inode(normal_path(operation.path))
        grows = operation.length - inode.cached.length
        if grows <= 0:
            return
        if self.capacity_bytes is not None and self.used_bytes() + grows > self.capacity_bytes:
            raise _error(errno.ENOSPC, operation.path)
        self._set_length(inode, operation.length)

    def _write(self, session: Session, operation: files.Write) -> None:
        inode = session.inode(normal_path(operation.path))
        buffers = operation.buffers
        data = bytes(buffers[0]) if len(buffers) == 1 else b"".join(buffers)
        self.write_data(inode, operation.offset, data)

    def write_data(self, inode: Inode, offset: int, data: bytes) -> None:
        if data:
            inode.cached.write(offset, data)
            inode.changes.append(DataChange(offset, data))

    def _data_sync(self, session: Session, operation: files.DataSync) -> None:
        _make_durable(session.inode(normal_path(operation.path)))

    def _truncate(self, session: Session, operation: files.Truncate) -> None:
        self._set_length(session.inode(normal_path(operation.path)), operation.length)

    def _set_length(self, inode: Inode, length: int) -> None:
        if length != inode.cached.length:
            inode.cached.set_length(length)
            inode.changes.append(DataChange(length, None))

    def _read(self, session: Session, operation: files.Read) -> memoryview:
        path = normal_path(operation.path)
        inode = session.opened.get(path) or self.files.get(path)
        if inode is None:
            raise _error(errno.ENOENT, path)
        return memoryview(inode.cached.read(operation.offset, operation.length))

    def _size(self, session: Session, operation: files.Size) -> int | None:
        path = normal_path(operation.path)
        inode = session.opened.get(path) or self.files.get(path)
        return None if inode is None else inode.cached.length

    def _rename(self, session: Session, operation: files.Rename) -> None:
        source, target = normal_path(operation.source), normal_path(operation.target)
        if source in self.directories:
            raise OSError(errno.ENOTSUP, "renaming a directory is not simulated", source)
        inode = self.files.get(source)
        if inode is None or _parent(target) not in self.directories:
            raise _error(errno.ENOENT, source if inode is None else target)
        if target in self.directories:
            raise _error(errno.EISDIR, target)
        if source == target:
            return
        del self.files[source]
        self.files[target] = inode
        session.close(target)
        if source in session.opened:
            session.opened[target] = session.opened.pop(source)
        self._name_change("rename", source, target=target, inode=inode)

    def _unlink(self, session: Session, operation: files.Unlink) -> None:
        path = normal_path(operation.path)
        if path in self.directories:
            raise _error(errno.EISDIR, path)
        inode = self.files.pop(path, None)
        if inode is None:
            raise _error(errno.ENOENT, path)
        session.close(path)
        self._name_change("unlink", path, inode=inode)

    def _make_directory(self, _session: Session, operation: files.MakeDirectory) -> None:
        self._make_directories(normal_path(operation.path))

    def _make_directories(self, path: str) -> None:
        if path in self.directories:
            return
        if path in self.files:
            raise _error(errno.EEXIST, path)
        self._make_directories(_parent(path))
        self.directories[path] = None
        self._name_change("mkdir", path)

    def _list(self, _session: Session, operation: files.ListDirectory) -> list[str] | None:
        path = normal_path(operation.path)
        if path not in self.directories:
            return None
        return sorted(
            posixpath.basename(each)
            for names in (self.files, self.directories)
            for each in names
            if each != path and _parent(each) == path and posixpath.basename(each)
        )

    def _space(self, _session: Session, _operation: files.Space) -> tuple[int, int]:
        capacity = _UNLIMITED_BYTES if self.capacity_bytes is None else self.capacity_bytes
        return capacity, max(0, capacity - self.used_bytes())

    def _sync_directory(self, _session: Session, operation: files.SyncDirectory) -> None:
        path = normal_path(operation.path)
        if path not in self.directories:
            raise _error(errno.ENOENT, path)
        waiting = []
        for change in self.name_changes:
            if path in change.parents:
                change.parents.remove(path)
            if change.parents:
                waiting.append(change)
            else:
                _apply_names(change, self.durable_files, self.durable_directories)
        self.name_changes = waiting

    def _lock(self, session: Session, operation: files.Lock) -> bool:
        inode = session.inode(normal_path(operation.path))
        if inode.lock_holder not in (None, session):
            return False
        inode.lock_holder = session
        return True

    def _name_change(
        self, kind: str, path: str, *, target: str = "", inode: Inode | None = None
    ) -> None:
        parents = [_parent(path)]
        if target and _parent(target) != parents[0]:
            parents.append(_parent(target))
        self.name_changes.append(_NameChange(kind, path, target, inode, parents))

    # State.

    def used_bytes(self) -> int:
        return sum(inode.cached.length for inode in self.files.values())

    def sync_all(self) -> None:
        for inode in self.files.values():
            _make_durable(inode)
        for change in self.name_changes:
            _apply_names(change, self.durable_files, self.durable_directories)
        self.name_changes.clear()

    def after_power_loss(self, fate: Fate) -> "FileSystem":
        """What a machine finds when it comes up again; this file system is left as it is."""
        names = self.durable_files.copy()
        directories = self.durable_directories.copy()
        for change in self.name_changes:
            if fate.keeps_directory_change():
                _apply_names(change, names, directories)
        image = FileSystem.__new__(FileSystem)
        image.capacity_bytes = self.capacity_bytes
        image.name_changes = []
        image.directories = {path: None for path in directories if _is_reachable(path, directories)}
        image.files = {
            path: Inode(survivors(inode.durable, inode.changes, fate).copy())
            for path, inode in names.items()
            if _parent(path) in image.directories
        }
        image.durable_files = image.files.copy()
        image.durable_directories = image.directories.copy()
        return image

    def flip_bit(self, path: str, *, offset: int, bit: int = 0) -> None:
        """Damage what is stored, in the cache and below it."""
        inode = self.files[normal_path(path)]
        inode.cached.flip_bit(offset, bit)
        if offset < inode.durable.length:
            inode.durable.flip_bit(offset, bit)

    def cut(self, path: str, *, length: int) -> None:
        """Lose a file's end, in the cache and below it."""
        inode = self.files[normal_path(path)]
        inode.cached.set_length(length)
        inode.durable.set_length(min(length, inode.durable.length))

    def lose(self, path: str) -> None:
        """Lose a file, durably."""
        path = normal_path(path)
        del self.files[path]
        self.durable_files.pop(path, None)

    def contents(self, path: str) -> bytes:
        """The whole file, as a process reads it now."""
        inode = self.files[normal_path(path)]
        return inode.cached.read(0, inode.cached.length)

    def lose_pages(self, inode: Inode, fate: Fate) -> None:
        """What a failed sync leaves: pages that count as clean but may never have been written."""
        inode.durable = survivors(inode.durable, inode.changes, fate).copy()
        inode.changes = []


def _make_durable(inode: Inode) -> None:
    durable = inode.durable
    for change in inode.changes:
        if change.data is None:
            durable.set_length(change.offset)
        else:
            durable.write(change.offset, change.data)
    inode.changes = []


def _apply_names(
    change: _NameChange, names: dict[str, Inode], directories: dict[str, None]
) -> None:
    """Apply one change where what it builds on is there; a rename is whole or not at all."""
    path, inode = change.path, change.inode
    if change.kind == "mkdir":
        directories[path] = None
    elif change.kind == "create":
        assert inode is not None
        names[path] = inode
    elif names.get(path) is inode and inode is not None:
        del names[path]
        if change.kind == "rename":
            names[change.target] = inode


def _is_reachable(path: str, directories: dict[str, None]) -> bool:
    while path not in ("", "/", "."):
        if path not in directories:
            return False
        path = _parent(path)
    return True


# Hot: images of a disk ask for the folders of all its files, again and again.
@functools.lru_cache(maxsize=4096)
def _parent(path: str) -> str:
    return posixpath.dirname(path)


def normal_path(path: str) -> str:
    """One spelling per file."""
    # Hot: nearly every path is normal already.
    if "//" not in path and not path.endswith("/") and "/." not in path and path[:1] != ".":
        return path
    return posixpath.normpath(path)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


_APPLY: dict[type, Callable[[FileSystem, Session, Any], Any]] = {
    files.Open: FileSystem._open,
    files.Close: FileSystem._close,
    files.Preallocate: FileSystem._preallocate,
    files.Write: FileSystem._write,
    files.DataSync: FileSystem._data_sync,
    files.Truncate: FileSystem._truncate,
    files.Read: FileSystem._read,
    files.Size: FileSystem._size,
    files.Rename: FileSystem._rename,
    files.Unlink: FileSystem._unlink,
    files.MakeDirectory: FileSystem._make_directory,
    files.ListDirectory: FileSystem._list,
    files.Space: FileSystem._space,
    files.SyncDirectory: FileSystem._sync_directory,
    files.Lock: FileSystem._lock,
}
