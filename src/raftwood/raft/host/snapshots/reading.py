"""Reading a snapshot: verified, as a state machine takes it, or as it is, for another store."""

from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Final, Self

from raftwood.base import files as seam
from raftwood.base.errors import OutOfRange, StoreDamaged, TooLarge, UnsupportedVersion
from raftwood.base.files import Buffer, Files, perform
from raftwood.raft.host.snapshots.container import (
    END_BYTES,
    Decoder,
    Kind,
    Part,
    SnapshotMeta,
    claims_no_files,
)
from raftwood.raft.host.snapshots.writing import PIECE_BYTES, PieceFile, told

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
    with told(path):
        (size,) = await perform(files, seam.Size(path))
    parts = _Parts(files, path, size or 0, read_bytes=_META_READ_BYTES)
    while parts.meta is None:
        await parts.read_more()
    return parts.meta, size


class _Parts:
    """The frames of a container, each verified; ends only where the whole was whole.

    Not a generator: one that is left in the middle needs nobody to close it.
    """

    def __init__(
        self, files: Files, path: str, size: int, *, read_bytes: int = PIECE_BYTES
    ) -> None:
        self._files = files
        self._path = path
        self._size = size
        self._offset = 0
        self._read_bytes = read_bytes
        self._decoder = Decoder()
        self._ready: deque[Part] = deque()

    @property
    def meta(self) -> SnapshotMeta | None:
        return self._decoder.meta

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Part:
        while not self._ready:
            if self._decoder.ended and self._offset == self._size:
                raise StopAsyncIteration
            await self.read_more()
        return self._ready.popleft()

    async def read_more(self) -> None:
        with told(self._path):
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
            if part.kind is Kind.CHUNK:
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
        """Copy the extra files out: name → path of a file that is there until `close`.

        The receiver may rename it to keep it. `StoreDamaged`, with nothing left, where any of the
        snapshot is bad.
        """
        if claims_no_files(await self.read_raw(max(0, self.size - END_BYTES), END_BYTES)):
            return {}
        found: dict[str, str] = {}
        file: PieceFile | None = None
        try:
            async for part in _Parts(self._files, self._path, self.size):
                if part.kind is Kind.FILE_PIECE and file is not None:
                    await file.add(part.payload)
                elif part.kind is Kind.FILE:
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
        with told(self._path):
            (data,) = await perform(self._files, seam.Read(self._path, offset, length))
        if len(data) < length:
            raise damaged(self._path, StoreDamaged(f"it ends at offset {offset + len(data)}"))
        return data  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Remove what was extracted."""
        extracted, self._extracted = self._extracted, []
        for file in extracted:
            await file.discard()
