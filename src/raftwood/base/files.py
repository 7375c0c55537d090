"""The `Files` seam: all disk access, as operations submitted in order.

A store keeps its layout and its indexes on the event loop and hands the disk lists of operations.
On a real machine one thread per disk runs them, in the simulator they are events in virtual time;
both call back on the loop. Files are named by path; a file is opened before it is written, reading
needs no `Open`.

Order: submissions that write run one after another, in the order submitted. A submission that only
reads may overtake writes that have not been answered yet. The first operation that fails ends its
submission: later ones in it do not run.

`explained` turns an `OSError` into the error that tells the user of a data folder what to do.
"""

import asyncio
import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from raftwood.base.errors import DiskFull, InvalidInput, RaftwoodError, StoreError

Buffer: TypeAlias = bytes | bytearray | memoryview


class Open(msgspec.Struct, frozen=True):
    """Open for writing; with `create`, make an empty file if there is none."""

    path: str
    create: bool = False


class Close(msgspec.Struct, frozen=True):
    """Release the descriptor; closing a file that is not open does nothing."""

    path: str


class Preallocate(msgspec.Struct, frozen=True):
    """Reserve room and set the length; the only operation that may answer ENOSPC."""

    path: str
    length: int


class Write(msgspec.Struct, frozen=True):
    """Write all buffers, one after the other, at the offset; a short write is an error."""

    path: str
    offset: int
    buffers: Sequence[Buffer]


class DataSync(msgspec.Struct, frozen=True):
    """Make the file's contents and length durable."""

    path: str


class Truncate(msgspec.Struct, frozen=True):
    """Cut the file to a length."""

    path: str
    length: int


class Read(msgspec.Struct, frozen=True):
    """Answers a memoryview, shorter than asked only at the end of the file."""

    path: str
    offset: int
    length: int


class Size(msgspec.Struct, frozen=True):
    """Answers the length in bytes, or None if there is no such file."""

    path: str


class Rename(msgspec.Struct, frozen=True):
    """Replace the target atomically; durable after a `SyncDirectory`."""

    source: str
    target: str


class Unlink(msgspec.Struct, frozen=True):
    """Remove and close a file; durable after a `SyncDirectory`."""

    path: str


class MakeDirectory(msgspec.Struct, frozen=True):
    """Make a directory with its parents; one that exists is left alone."""

    path: str


class ListDirectory(msgspec.Struct, frozen=True):
    """Answers the sorted names in a directory, or None if there is none."""

    path: str


class DiskSpace(msgspec.Struct, frozen=True):
    """Answers the bytes of the disk that holds a directory, and how many are free."""

    path: str


class SyncDirectory(msgspec.Struct, frozen=True):
    """Make creations, renames and removals in a directory durable."""

    path: str


class Lock(msgspec.Struct, frozen=True):
    """Take an exclusive lock on an open file until it is closed or the process ends.

    Answers False if another process holds it.
    """

    path: str


Operation: TypeAlias = (
    Open
    | Close
    | Preallocate
    | Write
    | DataSync
    | Truncate
    | Read
    | Size
    | Rename
    | Unlink
    | MakeDirectory
    | ListDirectory
    | DiskSpace
    | SyncDirectory
    | Lock
)
READING = (Read, Size, ListDirectory, DiskSpace)


class Completion(msgspec.Struct, frozen=True):
    """The outcome of a submission: a result per operation that ran, and the error that ended it."""

    results: list[Any]
    error: OSError | None = None
    failed: Operation | None = None


class Files(Protocol):
    """One disk."""

    def submit(
        self, operations: Sequence[Operation], callback: Callable[[Completion], None]
    ) -> None:
        """Runs the operations in order, then calls back on the event loop."""
        ...


async def perform(files: Files, *operations: Operation) -> list[Any]:
    """Submits, waits, and raises any error: for set-up paths, not for the hot one."""
    future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()

    def finish(completion: Completion) -> None:
        if not future.done():
            future.set_result(completion)

    files.submit(operations, finish)
    completion = await future
    if completion.error is not None:
        raise completion.error
    return completion.results


NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_WRONG_PLACE: Final = (
    errno.EACCES,
    errno.EEXIST,
    errno.EINVAL,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
)


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Turns errors of opening or inspecting a data folder into errors that name the remedy."""
    try:
        yield
    except OSError as error:
        raise _explain(path, error) from error


def _explain(path: str, error: OSError) -> RaftwoodError:
    if error.errno in NO_ROOM:
        return DiskFull(f"no room for the data folder {path} ({error}): free space on the disk")
    if error.errno in _WRONG_PLACE:
        return InvalidInput(
            f"cannot use {path} as a data folder: {error}; give another path, or the right to "
            "write there"
        )
    return StoreError(f"cannot use the data folder {path}: {error}; check the disk and the system")
