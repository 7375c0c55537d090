"""`MachineFiles`: the real file system, on threads: a slow disk never stops the event loop.

`birth_ns` distinguishes a file from another one that got its inode. Python's `os.stat` lacks it on
Linux, so it comes from `statx`.
"""

import asyncio
import ctypes
import glob
import os
import stat
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from raftwood.clogs.tail.checkpoints import HEAD_BYTES, FileIdentity, FileLook, FoundFile
from raftwood.clogs.tail.seams import Handle, OpenedFile
from raftwood.clogs.tail.watch import is_excluded

_NS: Final = 1_000_000_000
_EMPTY_PATH: Final = 0x1000
_BIRTH: Final = 0x800
_ANSWER_BYTES: Final = 256
_MASK: Final = struct.Struct("=I")
_TIME: Final = struct.Struct("=qI")
_TIME_AT: Final = 80


def _compiled_statx() -> Callable[..., int] | None:
    try:
        call = ctypes.CDLL(None).statx
    except (AttributeError, OSError):
        return None  # another system, or an old one
    call.argtypes = (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_void_p,
    )
    found: Callable[..., int] = call
    return found


_statx: Final = _compiled_statx()


def birth_ns(descriptor: int) -> int:
    """Returns nanoseconds since 1970; 0 if the system or the file system does not record it."""
    if _statx is None:
        return 0
    answer = ctypes.create_string_buffer(_ANSWER_BYTES)
    if _statx(descriptor, b"", _EMPTY_PATH, _BIRTH, answer) != 0:
        return 0
    (mask,) = _MASK.unpack_from(answer)
    if not mask & _BIRTH:
        return 0
    seconds, nanoseconds = _TIME.unpack_from(answer, _TIME_AT)
    return int(seconds) * _NS + int(nanoseconds)


Result = TypeVar("Result")
_THREADS: Final = 4
"""A disk that hangs delays its own files and not all the others."""
_OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK


class MachineFiles:
    """The files of this machine."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="raftwood-tail")
        self._handles: dict[Handle, None] = {}

    async def scan(self, paths: Sequence[str], exclude: Sequence[str]) -> list[FoundFile]:
        return await self.work(partial(_scan, paths, exclude))

    async def find(self, wanted: Sequence[tuple[str, int]]) -> list[FoundFile]:
        return await self.work(partial(_find, wanted))

    async def visit(self, paths: Sequence[str]) -> list[FoundFile | None]:
        return await self.work(partial(_visit, paths))

    async def open(self, path: str) -> OpenedFile:
        opened = await self.work(partial(_open, path))
        self._handles[opened.handle] = None
        return opened

    async def read(self, handle: Handle, offset: int, length: int) -> tuple[bytes, FileLook]:
        return await self.work(partial(_read, handle, offset, length))

    async def look(self, handles: Sequence[Handle]) -> list[FileLook | None]:
        return await self.work(partial(_look_at_all, handles))

    async def work(self, job: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, job)

    def close(self, handle: Handle) -> None:
        del self._handles[handle]
        os.close(handle)

    async def end(self) -> None:
        # A read under way uses its descriptor, which must not become another file's meanwhile.
        self._threads.shutdown(wait=True, cancel_futures=True)
        for handle in list(self._handles):
            self.close(handle)


def _scan(paths: Sequence[str], exclude: Sequence[str]) -> list[FoundFile]:
    found: dict[str, FoundFile] = {}
    for pattern in paths:
        # A file that is named literally is never excluded.
        left_out = exclude if glob.has_magic(pattern) else ()
        for path in glob.iglob(pattern, recursive=True):
            if path in found or is_excluded(path, left_out):
                continue
            if (each := _found(path)) is not None:
                found[path] = each
    return [found[path] for path in sorted(found)]


def _found(path: str, *, is_matched: bool = True) -> FoundFile | None:
    """Returns None if there is no regular file at the path."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    identity = FileIdentity(status.st_dev, status.st_ino)
    target = os.path.realpath(path) if os.path.islink(path) else ""
    return FoundFile(path, identity, status.st_size, status.st_mtime_ns, is_matched, target)


def _visit(paths: Sequence[str]) -> list[FoundFile | None]:
    return [_found(path) for path in paths]


def _find(wanted: Sequence[tuple[str, int]]) -> list[FoundFile]:
    by_folder: dict[str, list[int]] = {}
    for folder, inode in wanted:
        by_folder.setdefault(folder, []).append(inode)
    found = []
    for folder, inodes in by_folder.items():
        numbers = frozenset(inodes)
        try:
            with os.scandir(folder) as entries:
                paths = [entry.path for entry in entries if entry.inode() in numbers]
        except OSError:
            continue  # the folder may come back, for example if it is mounted late
        for path in sorted(paths):
            each = _found(path, is_matched=False)
            if each is not None and each.identity.inode in numbers:
                found.append(each)
    return found


def _open(path: str) -> OpenedFile:
    handle = os.open(path, _OPEN_FLAGS)
    try:
        folder = os.path.dirname(os.path.realpath(path))
        look = _look(handle, os.pread(handle, HEAD_BYTES, 0), birth_ns(handle))
        return OpenedFile(handle, folder, look)
    except BaseException:
        os.close(handle)
        raise


def _read(handle: Handle, offset: int, length: int) -> tuple[bytes, FileLook]:
    data = os.pread(handle, length, offset)
    while 0 < len(data) < length:  # a read may return less before the file's end
        more = os.pread(handle, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    # After the data, so that the look shows whatever happened to the file before.
    return data, _look(handle, os.pread(handle, HEAD_BYTES, 0))


def _look(handle: Handle, head: bytes = b"", born_ns: int = 0) -> FileLook:
    status = os.fstat(handle)
    identity = FileIdentity(status.st_dev, status.st_ino)
    return FileLook(identity, status.st_size, status.st_mtime_ns, status.st_nlink, head, born_ns)


def _look_at_all(handles: Sequence[Handle]) -> list[FileLook | None]:
    looks: list[FileLook | None] = []
    for handle in handles:
        try:
            looks.append(_look(handle))
        except OSError:
            looks.append(None)
    return looks
