"""A machine's files in memory, for a tailer under test: inodes, names, descriptors, no threads.

An inode number is used again as soon as nobody has the file open and no name leads to it, as file
systems do it.
"""

import asyncio
import errno
import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from raftwood.clogs.tail.checkpoints import HEAD_BYTES, FileIdentity, FileLook, FoundFile
from raftwood.clogs.tail.seams import Handle, OpenedFile
from raftwood.clogs.tail.watch import EventKind, WatchEvent

Result = TypeVar("Result")
DEVICE = 1


class FakeInode:
    def __init__(self, number: int) -> None:
        self.number = number
        self.data = bytearray()
        self.mtime_ns = 0
        self.links = 0
        self.opened = 0


class FakeDisk:
    """What outlives a process: names and inodes."""

    def __init__(self) -> None:
        self.names: dict[str, FakeInode] = {}
        self.device = DEVICE
        self.on_event: Callable[[WatchEvent], None] | None = None
        self._free: list[int] = []
        self._next = 100
        self._time = 0

    def append(self, path: str, data: bytes) -> FakeInode:
        inode = self.names.get(path)
        if inode is None:
            number = heapq.heappop(self._free) if self._free else self._next
            self._next = max(self._next, number + 1)
            inode = self.names[path] = FakeInode(number)
            inode.links = 1
            self._tell(EventKind.CREATED, path)
        self.write_on(inode, data)
        return inode

    def write_on(self, inode: FakeInode, data: bytes) -> None:
        inode.data += data
        self._touch(inode)
        self._tell_written(inode)

    def truncate(self, path: str) -> None:
        self.names[path].data.clear()
        self._touch(self.names[path])
        self._tell(EventKind.WRITTEN, path)

    def rename(self, source: str, target: str) -> None:
        if target in self.names:
            self.unlink(target)
        self.names[target] = self.names.pop(source)
        self._tell(EventKind.MOVED, target, source)

    def unlink(self, path: str) -> None:
        inode = self.names.pop(path)
        inode.links -= 1
        self.free(inode)
        self._tell(EventKind.REMOVED, path)

    def free(self, inode: FakeInode) -> None:
        if not inode.links and not inode.opened:
            heapq.heappush(self._free, inode.number)

    def _tell_written(self, inode: FakeInode) -> None:
        for path, each in self.names.items():
            if each is inode:
                self._tell(EventKind.WRITTEN, path)

    def _tell(self, kind: EventKind, path: str, origin: str = "") -> None:
        if self.on_event is not None:
            self.on_event(WatchEvent(kind, path, origin))

    def _touch(self, inode: FakeInode) -> None:
        self._time += 1
        inode.mtime_ns = self._time


class FakeWatch:
    """Tells what happens on the disk. One that is not whole loses events, which it may know."""

    def __init__(self, disk: FakeDisk, source: random.Random, *, is_whole: bool) -> None:
        self._disk = disk
        self._random = source
        self._is_whole = is_whole
        self._events: list[WatchEvent] = []
        self._on_events: Callable[[], None] | None = None

    def begin(self, on_events: Callable[[], None]) -> None:
        self._on_events = on_events

    async def follow(self, paths: Sequence[str], links: Mapping[str, str]) -> str:
        await asyncio.sleep(0)
        self._disk.on_event = self._happened
        return "" if self._is_whole or self._random.random() < 0.9 else f"{paths} and {links}"

    def take(self) -> list[WatchEvent]:
        taken, self._events = self._events, []
        return taken

    def end(self) -> None:
        self._disk.on_event = None

    def _happened(self, event: WatchEvent) -> None:
        if not self._is_whole and self._random.random() < 0.3:
            if self._random.random() < 0.5:
                return  # nobody hears of it
            event = WatchEvent(EventKind.UNCLEAR)
        self._events.append(event)
        if self._on_events is not None:
            self._on_events()


class FakeFiles:
    """One process's view of the disk; `delay_s` passes in each call."""

    def __init__(self, disk: FakeDisk, *, delay_s: float = 0.0) -> None:
        self.disk = disk
        self.delay_s = delay_s
        self.errors: dict[str, int] = {}
        self.opened_most = 0
        self._handles: dict[Handle, tuple[str, FakeInode]] = {}
        self._next = 1

    async def scan(self, paths: Sequence[str], exclude: Sequence[str]) -> list[FoundFile]:
        await asyncio.sleep(self.delay_s)
        return [
            self._found(path, is_matched=True)
            for path in sorted(self.disk.names)
            if any(fnmatchcase(path, pattern) for pattern in paths)
            and not any(fnmatchcase(path.rpartition("/")[2], pattern) for pattern in exclude)
        ]

    async def find(self, wanted: Sequence[tuple[str, int]]) -> list[FoundFile]:
        await asyncio.sleep(self.delay_s)
        return [
            self._found(path, is_matched=False)
            for path, inode in sorted(self.disk.names.items())
            if (path.rpartition("/")[0], inode.number) in wanted
        ]

    async def visit(self, paths: Sequence[str]) -> list[FoundFile | None]:
        await asyncio.sleep(self.delay_s)
        return [
            self._found(path, is_matched=True) if path in self.disk.names else None
            for path in paths
        ]

    async def open(self, path: str) -> OpenedFile:
        await asyncio.sleep(self.delay_s)
        self._check(path)
        inode = self.disk.names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        inode.opened += 1
        handle = self._next
        self._next += 1
        self._handles[handle] = (path, inode)
        self.opened_most = max(self.opened_most, len(self._handles))
        return OpenedFile(handle, path.rpartition("/")[0], self._look(inode, head=True))

    async def read(self, handle: Handle, offset: int, length: int) -> tuple[bytes, FileLook]:
        path, inode = self._handles[handle]
        self._check(path)
        data = bytes(inode.data[offset : offset + length])
        await asyncio.sleep(self.delay_s)
        return data, self._look(inode, head=True)

    async def look(self, handles: Sequence[Handle]) -> list[FileLook | None]:
        await asyncio.sleep(self.delay_s)
        return [
            self._look(self._handles[handle][1]) if handle in self._handles else None
            for handle in handles
        ]

    async def work(self, job: Callable[[], Result]) -> Result:
        await asyncio.sleep(self.delay_s)
        return job()

    def close(self, handle: Handle) -> None:
        _, inode = self._handles.pop(handle)
        inode.opened -= 1
        self.disk.free(inode)

    async def end(self) -> None:
        self.killed()

    def killed(self) -> None:
        """The process is gone, and its descriptors and watches with it."""
        self.disk.on_event = None
        for handle in list(self._handles):
            self.close(handle)

    def _check(self, path: str) -> None:
        if path in self.errors:
            raise OSError(self.errors[path], "injected", path)

    def _found(self, path: str, *, is_matched: bool) -> FoundFile:
        inode = self.disk.names[path]
        identity = FileIdentity(self.disk.device, inode.number)
        return FoundFile(path, identity, len(inode.data), inode.mtime_ns, is_matched)

    def _look(self, inode: FakeInode, *, head: bool = False) -> FileLook:
        identity = FileIdentity(self.disk.device, inode.number)
        first = bytes(inode.data[:HEAD_BYTES]) if head else b""
        return FileLook(identity, len(inode.data), inode.mtime_ns, inode.links, first)
