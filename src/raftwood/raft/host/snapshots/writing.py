"""Writing a snapshot: into a temporary file, piece by piece, which then gets its name in one step.

A piece is about a megabyte, so that memory is bounded and the loop goes on between two of them.
Room is reserved piece by piece, where a full disk shows. What was written is synced every few
pieces: the disk's writing lane serves the log's commits too, and one sync of a large file would
hold them up.
"""

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from raftwood.base import files as seam
from raftwood.base.errors import AlreadyExists, DiskFull, NotFound, StoreError, TooLarge
from raftwood.base.files import Buffer, Files, perform
from raftwood.base.logs import get_logger
from raftwood.base.names import checked_name
from raftwood.disk.explaining import NO_ROOM
from raftwood.raft.host.snapshots.container import EXTRA_FILES_MAX, Encoder
from raftwood.raft.state_machine import Stopped

_log = get_logger("snapshots")

PIECE_BYTES: Final = 1 << 20
_PIECE_BUFFERS_MAX: Final = 512
"""A state of many small chunks must not hold the loop until they fill a piece."""
_PIECES_PER_SYNC: Final = 8


@contextmanager
def told(path: str) -> Iterator[None]:
    """Around the disk operations of one file: errors of the system as errors of a store."""
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
        """Take a file; it must stay as it is until the save has ended."""
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
        with told(self.path):
            await perform(
                self._files, seam.Open(self.path, create=True), seam.Truncate(self.path, 0)
            )

    async def add(self, *buffers: Buffer) -> None:
        """Take more bytes; they are written once there are enough for a piece."""
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
        with told(self.path):
            await perform(self._files, *operations)

    async def close(self) -> None:
        """Write the rest, for a file that may be gone after a crash."""
        await self.flush()
        with told(self.path):
            await perform(self._files, seam.Close(self.path))

    async def commit(self, target: str, folder: str) -> None:
        """Write the rest and give the file its name; durable when this returns."""
        await self.flush()
        self._names.append(target)
        with told(target):
            await perform(
                self._files,
                seam.DataSync(self.path),
                seam.Rename(self.path, target),
                seam.Close(target),
                seam.SyncDirectory(folder),
            )

    async def discard(self) -> None:
        """Remove the file, whichever name it has by now.

        The last name goes first, in this turn: only it may be given to another file later.
        """
        for name in reversed(self._names):
            await remove_scratch(self._files, name)


async def remove_scratch(files: Files, path: str) -> None:
    """Remove a file that nobody needs; one that stays goes at the next start."""
    try:
        await perform(files, seam.Unlink(path))
    except FileNotFoundError:
        pass
    except OSError as error:
        _log.warning("cannot remove a file of no use", path=path, error=str(error))


async def write_container(
    file: PieceFile,
    encoder: Encoder,
    chunks: Iterable[bytes],
    extra: ExtraFileList,
    stopped: Stopped,
    *,
    files: Files,
) -> bool:
    """Write all but the name; False where it was stopped."""
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
            with told(path):
                (data,) = await perform(files, seam.Read(path, offset, PIECE_BYTES))
            length = len(data)
            offset += length
            if length:
                await file.add(*encoder.file_piece(data))
    await file.add(*encoder.end())
    await file.flush()
    return not stopped()
