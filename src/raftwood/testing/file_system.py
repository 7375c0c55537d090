"""A file system in memory with a page cache: a power loss leaves the durable part of it. No time.

Contents become durable with `DataSync`, names with `SyncDirectory` of the directory they stand in.
`DescriptorTable` is one process's use of it: descriptors and locks, gone when the process ends.
`Content` is a file's bytes as pages that copies share, so that thousands of images of one disk fit
into memory.

After a power loss every choice goes through a `Fate`, so that the simulated disk (by chance) and
the crash images (by plan) share one model. POSIX promises little, and the model promises no more: a
store that passes on a kinder one loses data on a real disk. Unsynced changes survive one by one, in
any order; a write may be torn at any byte or sector; a file that was synced has no name while its
directory was not; a failed sync may drop pages and let the next one succeed.
Tests: `tests/unit/testing/test_simulated_disk.py`
"""

import errno
import functools
import os
import posixpath
import random
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final

import msgspec

from raftwood.base import files

PAGE_BYTES: Final = 4096
_ZEROS: Final = bytes(PAGE_BYTES)


class Content:
    """Sparse bytes: missing pages read as zeros.

    Copies share the table of pages until one of them is written: most are only read, or not at all.
    """

    __slots__ = ("_is_shared", "_pages", "length")

    def __init__(self) -> None:
        self.length = 0
        self._pages: dict[int, bytes] = {}
        self._is_shared = False

    def copy(self) -> "Content":
        other = Content()
        other.length = self.length
        other._pages = self._pages
        other._is_shared = self._is_shared = True
        return other

    def _own_pages(self) -> dict[int, bytes]:
        if self._is_shared:
            self._pages = self._pages.copy()
            self._is_shared = False
        return self._pages

    def write(self, offset: int, data: bytes) -> None:
        """Writes, growing the file if needed."""
        end = offset + len(data)
        self.length = max(self.length, end)
        pages = self._own_pages()
        index, start = divmod(offset, PAGE_BYTES)
        if start + len(data) <= PAGE_BYTES:
            page = pages.get(index, _ZEROS)
            pages[index] = page[:start] + data + page[start + len(data) :]
            return
        position = 0
        while position < len(data):
            index, start = divmod(offset + position, PAGE_BYTES)
            part = data[position : position + PAGE_BYTES - start]
            if len(part) < PAGE_BYTES:
                page = pages.get(index, _ZEROS)
                part = page[:start] + part + page[start + len(part) :]
            position += PAGE_BYTES - start
            pages[index] = part

    def read(self, offset: int, length: int) -> bytes:
        """Returns bytes from the offset, fewer only at the end of the file."""
        end = min(offset + length, self.length)
        if offset >= end:
            return b""
        first, start = divmod(offset, PAGE_BYTES)
        last = (end - 1) // PAGE_BYTES
        pages = self._pages
        if first == last:
            return pages.get(first, _ZEROS)[start : start + end - offset]
        whole = b"".join([pages.get(index, _ZEROS) for index in range(first, last + 1)])
        return whole[start : start + end - offset]

    def set_length(self, length: int) -> None:
        """Cuts or extends; a range that is cut off and restored reads as zeros."""
        if length < self.length:
            index, start = divmod(length, PAGE_BYTES)
            pages = self._own_pages()
            for gone in [each for each in pages if each > index or (each == index and not start)]:
                del pages[gone]
            if start and index in pages:
                pages[index] = pages[index][:start] + _ZEROS[start:]
        self.length = length

    def flip_bit(self, offset: int, bit: int) -> None:
        if offset >= self.length:
            raise ValueError(f"offset {offset} is behind the end at {self.length}")
        old = self.read(offset, 1)[0]
        self.write(offset, bytes([old ^ (1 << bit)]))


_SECTOR_BYTES = 512


class SurvivalOutcome(Enum):
    """The fate of one unsynced change."""

    KEPT = "kept"
    LOST = "lost"
    TORN = "torn"


class DataChange(msgspec.Struct, frozen=True):
    """A write, or with `data` of None a new length."""

    offset: int
    data: bytes | None


class Fate:
    """Decides by chance; subclasses decide by plan."""

    def __init__(self, source: random.Random, *, keep: float = 0.4, tear: float = 0.25) -> None:
        self.random = source
        self._keep = keep
        self._tear = tear

    def of_data(self, change: DataChange, *, is_last: bool) -> SurvivalOutcome:  # noqa: ARG002
        draw = self.random.random()
        if draw < self._keep:
            return SurvivalOutcome.KEPT
        if draw < self._keep + self._tear and change.data is not None and len(change.data) > 1:
            return SurvivalOutcome.TORN
        return SurvivalOutcome.LOST

    def keeps_directory_change(self) -> bool:
        return self.random.random() < 0.5

    def keeps_length(self) -> bool:
        """Whether a new length survived with the write that grew the file, or without it.

        File systems store the two apart, so a file may end in zeros that no process wrote.
        """
        return self.random.random() < 0.6


class KeepAll(Fate):
    """All changes reached the disk by themselves, just before the power went."""

    def of_data(self, change: DataChange, *, is_last: bool) -> SurvivalOutcome:  # noqa: ARG002
        return SurvivalOutcome.KEPT

    def keeps_directory_change(self) -> bool:
        return True

    def keeps_length(self) -> bool:
        return True


class LoseAll(Fate):
    """Only synced changes survive."""

    def of_data(self, change: DataChange, *, is_last: bool) -> SurvivalOutcome:  # noqa: ARG002
        return SurvivalOutcome.LOST

    def keeps_directory_change(self) -> bool:
        return False

    def keeps_length(self) -> bool:
        return False


class LoseDirectories(KeepAll):
    """All data survive, but files whose directory was not synced have no name."""

    def keeps_directory_change(self) -> bool:
        return False


class LoseData(KeepAll):
    """Names and lengths survive, unsynced contents read as zeros or as before."""

    def of_data(self, change: DataChange, *, is_last: bool) -> SurvivalOutcome:  # noqa: ARG002
        return SurvivalOutcome.LOST if change.data is not None else SurvivalOutcome.KEPT


class TearLast(KeepAll):
    """All changes survive except the last write, which is torn."""

    def of_data(self, change: DataChange, *, is_last: bool) -> SurvivalOutcome:
        if is_last and change.data is not None and len(change.data) > 1:
            return SurvivalOutcome.TORN
        return SurvivalOutcome.KEPT


def survivors(durable: Content, changes: list[DataChange], fate: Fate) -> Content:
    """Returns the contents after a power loss; `durable` itself is unchanged."""
    if not changes:
        return durable
    content = durable.copy()
    last = changes[-1]
    for change in changes:
        outcome = fate.of_data(change, is_last=change is last)
        if change.data is None:
            if outcome is SurvivalOutcome.KEPT:
                content.set_length(change.offset)
        elif outcome is SurvivalOutcome.KEPT:
            _write(content, change.offset, change.data, fate)
        elif outcome is SurvivalOutcome.TORN:
            for offset, part in _torn(change.offset, change.data, fate.random):
                _write(content, offset, part, fate)
        else:
            end = change.offset + len(change.data)
            if end > content.length and fate.keeps_length():
                content.set_length(end)
    return content


def _write(content: Content, offset: int, data: bytes, fate: Fate) -> None:
    if offset + len(data) > content.length and not fate.keeps_length():
        data = data[: max(0, content.length - offset)]
    if data:
        content.write(offset, data)


def _torn(offset: int, data: bytes, source: random.Random) -> list[tuple[int, bytes]]:
    """Returns part of a write: a beginning or an end cut at any byte, or any set of its sectors.

    A disk writes sectors as a whole but in any order; a kernel or a network disk may stop anywhere.
    Code that trusts either is found only if both occur.
    """
    draw = source.random()
    if draw < 0.35:
        return [(offset, data[: source.randrange(len(data))])]
    if draw < 0.5:
        start = source.randrange(1, len(data))
        return [(offset + start, data[start:])]
    parts = []
    position = 0
    while position < len(data):
        end = position + _SECTOR_BYTES - (offset + position) % _SECTOR_BYTES
        if source.random() < 0.5:
            parts.append((offset + position, data[position:end]))
        position = end
    return parts


_UNLIMITED_BYTES = 1 << 40


class Inode:
    """A file, apart from its names."""

    __slots__ = ("cached", "changes", "durable", "lock_holder")

    def __init__(self, content: Content | None = None) -> None:
        self.cached = content or Content()
        self.durable = Content() if content is None else content.copy()
        self.changes: list[DataChange] = []
        self.lock_holder: DescriptorTable | None = None


class _NameChange(msgspec.Struct):
    """An unsynced change of a directory; durable when all its `parents` were synced."""

    kind: str
    path: str
    target: str
    inode: Inode | None
    parents: list[str]


class DescriptorTable:
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

    def apply(self, session: DescriptorTable, operation: files.Operation) -> Any:
        """Runs one operation; returns its result or raises OSError."""
        return _APPLY[type(operation)](self, session, operation)

    def _open(self, session: DescriptorTable, operation: files.Open) -> None:
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

    def _close(self, session: DescriptorTable, operation: files.Close) -> None:
        session.close(normal_path(operation.path))

    def _preallocate(self, session: DescriptorTable, operation: files.Preallocate) -> None:
        inode = session.inode(normal_path(operation.path))
        grows = operation.length - inode.cached.length
        if grows <= 0:
            return
        if self.capacity_bytes is not None and self.used_bytes() + grows > self.capacity_bytes:
            raise _error(errno.ENOSPC, operation.path)
        self._set_length(inode, operation.length)

    def _write(self, session: DescriptorTable, operation: files.Write) -> None:
        inode = session.inode(normal_path(operation.path))
        buffers = operation.buffers
        data = bytes(buffers[0]) if len(buffers) == 1 else b"".join(buffers)
        self.write_data(inode, operation.offset, data)

    def write_data(self, inode: Inode, offset: int, data: bytes) -> None:
        if data:
            inode.cached.write(offset, data)
            inode.changes.append(DataChange(offset, data))

    def _data_sync(self, session: DescriptorTable, operation: files.DataSync) -> None:
        _make_durable(session.inode(normal_path(operation.path)))

    def _truncate(self, session: DescriptorTable, operation: files.Truncate) -> None:
        self._set_length(session.inode(normal_path(operation.path)), operation.length)

    def _set_length(self, inode: Inode, length: int) -> None:
        if length != inode.cached.length:
            inode.cached.set_length(length)
            inode.changes.append(DataChange(length, None))

    def _read(self, session: DescriptorTable, operation: files.Read) -> memoryview:
        path = normal_path(operation.path)
        inode = session.opened.get(path) or self.files.get(path)
        if inode is None:
            raise _error(errno.ENOENT, path)
        return memoryview(inode.cached.read(operation.offset, operation.length))

    def _size(self, session: DescriptorTable, operation: files.Size) -> int | None:
        path = normal_path(operation.path)
        inode = session.opened.get(path) or self.files.get(path)
        return None if inode is None else inode.cached.length

    def _rename(self, session: DescriptorTable, operation: files.Rename) -> None:
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

    def _unlink(self, session: DescriptorTable, operation: files.Unlink) -> None:
        path = normal_path(operation.path)
        if path in self.directories:
            raise _error(errno.EISDIR, path)
        inode = self.files.pop(path, None)
        if inode is None:
            raise _error(errno.ENOENT, path)
        session.close(path)
        self._name_change("unlink", path, inode=inode)

    def _make_directory(self, _session: DescriptorTable, operation: files.MakeDirectory) -> None:
        self._make_directories(normal_path(operation.path))

    def _make_directories(self, path: str) -> None:
        if path in self.directories:
            return
        if path in self.files:
            raise _error(errno.EEXIST, path)
        self._make_directories(_parent(path))
        self.directories[path] = None
        self._name_change("mkdir", path)

    def _list(self, _session: DescriptorTable, operation: files.ListDirectory) -> list[str] | None:
        path = normal_path(operation.path)
        if path not in self.directories:
            return None
        return sorted(
            posixpath.basename(each)
            for names in (self.files, self.directories)
            for each in names
            if each != path and _parent(each) == path and posixpath.basename(each)
        )

    def _space(self, _session: DescriptorTable, _operation: files.DiskSpace) -> tuple[int, int]:
        capacity = _UNLIMITED_BYTES if self.capacity_bytes is None else self.capacity_bytes
        return capacity, max(0, capacity - self.used_bytes())

    def _sync_directory(self, _session: DescriptorTable, operation: files.SyncDirectory) -> None:
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

    def _lock(self, session: DescriptorTable, operation: files.Lock) -> bool:
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
        """Returns the file system after a restart of the machine; this one is unchanged.

        Names are decided apart from contents: a synced file may have no name, and a new name may
        stand for a file whose contents are lost.
        """
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
        """Damages a file, in the cache and below it."""
        inode = self.files[normal_path(path)]
        inode.cached.flip_bit(offset, bit)
        if offset < inode.durable.length:
            inode.durable.flip_bit(offset, bit)

    def cut(self, path: str, *, length: int) -> None:
        """Cuts a file's end off, in the cache and below it."""
        inode = self.files[normal_path(path)]
        inode.cached.set_length(length)
        inode.durable.set_length(min(length, inode.durable.length))

    def lose(self, path: str) -> None:
        """Removes a file, durably."""
        path = normal_path(path)
        del self.files[path]
        self.durable_files.pop(path, None)

    def contents(self, path: str) -> bytes:
        """Returns the whole file, as a process reads it now."""
        inode = self.files[normal_path(path)]
        return inode.cached.read(0, inode.cached.length)

    def lose_pages(self, inode: Inode, fate: Fate) -> None:
        """Leaves the file as a failed sync does.

        Linux marks the pages as clean: reads still show them, the next sync succeeds, and the disk
        may never have got them. Test: test_simulated_disk::
        test_after_a_failed_sync_a_later_one_says_yes_and_the_data_may_be_gone
        """
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
    """Applies one change if its base exists; a rename is whole or not at all."""
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


# Hot: images of a disk look up the folders of all its files, again and again.
@functools.lru_cache(maxsize=4096)
def _parent(path: str) -> str:
    return posixpath.dirname(path)


def normal_path(path: str) -> str:
    """Returns one spelling per file."""
    # Hot: nearly every path is normal already.
    if "//" not in path and not path.endswith("/") and "/." not in path and path[:1] != ".":
        return path
    return posixpath.normpath(path)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


_APPLY: dict[type, Callable[[FileSystem, DescriptorTable, Any], Any]] = {
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
    files.DiskSpace: FileSystem._space,
    files.SyncDirectory: FileSystem._sync_directory,
    files.Lock: FileSystem._lock,
}
