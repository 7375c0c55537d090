"""The `Environment` of a real process: the machine's clocks, its entropy, and its disk on threads.

`ThreadFiles` has one thread per disk that writes and syncs, and one that reads. The writing thread
runs submissions strictly in order, so one fdatasync serves everything written before it and the
loop never waits for a disk. Reads have a thread and descriptors of their own: a long read delays no
commit, and no descriptor is closed under a reader.

A small write alone, without a sync, goes to the operating system at once while the writing thread
is idle: it is a copy in memory, and two changes of threads cost several times as much. During a
sync such a write might wait for it, and so queues behind it.
"""

import asyncio
import errno
import fcntl
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn

from raftwood.base import files as seam
from raftwood.base.caches import LruCache
from raftwood.base.environment import Environment, SystemClock
from raftwood.base.errors import ShuttingDown
from raftwood.base.files import Buffer, Completion, Operation

_BUFFERS_PER_CALL = 1024  # IOV_MAX on Linux
_READ_DESCRIPTORS_MAX = 64
AT_ONCE_BYTES_MAX = 256 << 10


class ThreadFiles:
    """Runs file operations on two threads; submit from a running event loop."""

    def __init__(self) -> None:
        self._writing = _Lane("raftwood-disk-write")
        self._reading = _Lane("raftwood-disk-read")
        self._descriptors: dict[str, int] = {}
        self._read_descriptors: LruCache[str, int] = LruCache(_READ_DESCRIPTORS_MAX)
        self._closed = False

    def submit(
        self, operations: Sequence[Operation], callback: Callable[[Completion], None]
    ) -> None:
        reads_only = all(isinstance(operation, seam.READING) for operation in operations)
        if self._closed:
            raise ShuttingDown("the disk threads have ended: submit before they are closed")
        loop = asyncio.get_running_loop()
        lane = self._reading if reads_only else self._writing
        run = self._read_operation if reads_only else self._write_operation
        if lane.is_idle and _is_small_write(operations):
            loop.call_soon(callback, _run_all(run, operations))
        else:
            lane.put(partial(_run, run, operations, callback, loop))

    def close(self) -> None:
        """Finishes submitted work, ends both threads and closes all descriptors."""
        self._closed = True
        for lane in (self._writing, self._reading):
            lane.stop()
        for descriptor in (*self._descriptors.values(), *self._read_descriptors.pop_all()):
            os.close(descriptor)
        self._descriptors.clear()

    def after_fork(self) -> None:
        """Call in a forked child, which lacks the threads: closes its copies of the descriptors,
        since a lock is held until all copies are closed.
        """
        self._closed = True
        for descriptor in (*self._descriptors.values(), *self._read_descriptors.pop_all()):
            with suppress(OSError):  # the parent's thread may have closed it just before the fork
                os.close(descriptor)
        self._descriptors.clear()

    def _write_operation(self, operation: Operation) -> Any:
        match operation:
            case seam.Write(path, offset, buffers):
                return _write_all(self._opened(path), buffers, offset, path)
            case seam.DataSync(path):
                return os.fdatasync(self._opened(path))
            case seam.Open(path, create):
                return self._open(path, create=create)
            case seam.Close(path):
                return self._close(path)
            case seam.Preallocate(path, length):
                return os.posix_fallocate(self._opened(path), 0, length)
            case seam.Truncate(path, length):
                return os.ftruncate(self._opened(path), length)
            case seam.Rename(source, target):
                os.rename(source, target)
                self._close(target)
                self._forget_when_read(target)
                if source in self._descriptors:
                    self._descriptors[target] = self._descriptors.pop(source)
                return None
            case seam.Unlink(path):
                self._close(path)
                os.unlink(path)
                return self._forget_when_read(path)
            case seam.MakeDirectory(path):
                return os.makedirs(path, exist_ok=True)
            case seam.SyncDirectory(path):
                return _sync_directory(path)
            case seam.Lock(path):
                return _lock(self._opened(path))
            case _:
                return self._read_operation(operation)

    def _read_operation(self, operation: Operation) -> Any:
        match operation:
            case seam.Read(path, offset, length):
                return self._read(path, offset, length)
            case seam.Size(path):
                try:
                    return os.stat(path).st_size
                except FileNotFoundError:
                    return None
            case seam.ListDirectory(path):
                try:
                    return sorted(os.listdir(path))
                except FileNotFoundError:
                    return None
            case seam.DiskSpace(path):
                found = os.statvfs(path)
                return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
        raise TypeError(f"{operation!r} is not a file operation")

    def _opened(self, path: str) -> int:
        descriptor = self._descriptors.get(path)
        if descriptor is None:
            raise OSError(errno.EBADF, "file was not opened", path)
        return descriptor

    def _open(self, path: str, *, create: bool) -> None:
        if path not in self._descriptors:
            flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
            self._descriptors[path] = os.open(path, flags, 0o640)

    def _close(self, path: str) -> None:
        descriptor = self._descriptors.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def _read(self, path: str, offset: int, length: int) -> memoryview:
        if threading.current_thread() is not self._reading.thread:
            # A read inside a writing submission keeps its place in the order.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return _read_range(descriptor, offset, length)
            finally:
                os.close(descriptor)
        return _read_range(self._read_descriptor(path), offset, length)

    def _read_descriptor(self, path: str) -> int:
        descriptor = self._read_descriptors.get(path)
        if descriptor is None:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            for displaced in self._read_descriptors.put(path, descriptor):
                os.close(displaced)
        return descriptor

    def _forget_when_read(self, path: str) -> None:
        """Has the reading thread close a file that lost its name, to free its room."""
        self._reading.put(partial(self._forget, path))

    def _forget(self, path: str) -> None:
        descriptor = self._read_descriptors.pop(path)
        if descriptor is not None:
            os.close(descriptor)


class _Lane:
    """One thread and its queue of jobs."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # One thread alone updates each counter: the submitter, or the worker.
        self._put_count = 0
        self._done_count = 0
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether all queued jobs are done."""
        return self._put_count == self._done_count

    def put(self, job: Callable[[], None]) -> None:
        self._put_count += 1
        self._jobs.put(job)

    def stop(self) -> None:
        self._jobs.put(None)
        self.thread.join()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            job()
            self._done_count += 1
            del job  # an idle thread must not keep the buffers of its last job


def _is_small_write(operations: Sequence[Operation]) -> bool:
    first = operations[0] if len(operations) == 1 else None
    if not isinstance(first, seam.Write):
        return False
    try:
        return sum(map(len, first.buffers)) <= AT_ONCE_BYTES_MAX
    except TypeError:  # no buffers: the thread reports the error
        return False


def _run(
    run: Callable[[Operation], Any],
    operations: Sequence[Operation],
    callback: Callable[[Completion], None],
    loop: asyncio.AbstractEventLoop,
) -> None:
    completion = _run_all(run, operations)
    with suppress(RuntimeError):  # the loop was closed first: no caller is left
        loop.call_soon_threadsafe(callback, completion)


def _run_all(run: Callable[[Operation], Any], operations: Sequence[Operation]) -> Completion:
    results: list[Any] = []
    for operation in operations:
        try:
            results.append(run(operation))
        except OSError as error:
            return Completion(results, error, operation)
        except Exception as error:  # no error may end the thread: all callers wait for it
            return Completion(results, _as_os_error(error), operation)
    return Completion(results)


def _as_os_error(error: Exception) -> OSError:
    """Wraps an error raised before the system call: a path with a null byte, no memory, a bug."""
    number = errno.ENOMEM if isinstance(error, MemoryError) else errno.EINVAL
    told = OSError(number, f"{os.strerror(number)} ({type(error).__name__}: {error})")
    told.__cause__ = error
    return told


def _write_all(descriptor: int, buffers: Sequence[Buffer], offset: int, path: str) -> None:
    for start in range(0, len(buffers), _BUFFERS_PER_CALL):
        part = buffers[start : start + _BUFFERS_PER_CALL]
        expected = sum(map(len, part))
        written = os.pwritev(descriptor, part, offset)
        if written != expected:
            # A short write to a regular file means that something is wrong; the count that the
            # kernel returned is then not reliable.
            raise OSError(errno.EIO, f"short write: {written} of {expected} bytes", path)
        offset += written


def _read_range(descriptor: int, offset: int, length: int) -> memoryview:
    data = memoryview(bytearray(length))
    done = 0
    while done < length:
        count = os.preadv(descriptor, [data[done:]], offset + done)
        if count == 0:
            break
        done += count
    return data[:done].toreadonly()


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


EXIT_CODE_ENDED = 70
"""The exit code of a process that ended itself because it could not go on safely."""


@contextmanager
def real_environment() -> Iterator[Environment]:
    """An environment with its own disk threads, which end with the block."""
    files = ThreadFiles()
    try:
        yield Environment(
            clock=SystemClock(),
            random=random.SystemRandom(),
            files=files,
            end_process=end_process,
            compute=asyncio.to_thread,
        )
    finally:
        files.close()


def end_process(reason: str) -> NoReturn:
    """Prints the reason and ends at once: no clean-up may write or answer anything."""
    try:
        sys.stderr.write(f"fatal: {reason}\n")
        sys.stderr.flush()
    finally:
        os._exit(EXIT_CODE_ENDED)  # even if standard error is closed, or its disk full
