"""A whole copy of a partition, file by file in bounded chunks; the position comes last.

So a copy that breaks off has no position and is none. Nothing of it is in place before the store
takes it as a whole.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Final

import xxhash

from raftwood.base import files as seam
from raftwood.base.errors import InvalidInput, ProtocolError, TooLarge
from raftwood.base.files import Files, perform
from raftwood.net import Stream
from raftwood.zeppelin.node.seams import EpochStart
from raftwood.zeppelin.replication.wire import CopyChunk, CopyEnd, decode_copy, encode_copy

CHUNK_BYTES: Final = 256 << 10
FILES_MAX: Final = 100_000
_NAME_LENGTH_MAX: Final = 255


async def copy_items(
    files: Files, folder: str, *, sequence: int, epochs: Sequence[EpochStart]
) -> AsyncGenerator[bytes, None]:
    """What a folder holds, encoded for the wire, and at the end the position that it is of."""
    told: dict[str, tuple[int, int]] = {}
    (names,) = await perform(files, seam.ListDirectory(folder))
    for name in names or ():
        path = f"{folder}/{name}"
        (size,) = await perform(files, seam.Size(path))
        checksum = xxhash.xxh3_64()
        offset = 0
        while True:
            (data,) = await perform(files, seam.Read(path, offset, CHUNK_BYTES))
            checksum.update(data)
            yield encode_copy(CopyChunk(name, offset, bytes(data)))
            offset += len(data)
            if offset >= size or not len(data):
                break
        told[name] = (offset, checksum.intdigest())
    yield encode_copy(CopyEnd(told, sequence, tuple(epochs)))


async def receive_copy(files: Files, folder: str, stream: Stream) -> CopyEnd:
    """Write what comes into a new folder, and sync it; `ProtocolError` where it is not whole."""
    await perform(files, seam.MakeDirectory(folder))
    found: dict[str, tuple[int, xxhash.xxh3_64]] = {}
    async for item in stream:
        chunk = decode_copy(item)
        if isinstance(chunk, CopyEnd):
            await _check_and_sync(files, folder, found, chunk)
            return chunk
        path = f"{folder}/{_checked_file(chunk.name)}"
        size, checksum = found.get(chunk.name, (0, None))
        if checksum is None:
            if len(found) >= FILES_MAX:
                raise TooLarge(f"a copy has more than {FILES_MAX} files")
            checksum = xxhash.xxh3_64()
            await perform(files, seam.Open(path, create=True))
        if chunk.offset != size:
            raise ProtocolError(f"{chunk.name} of a copy goes on at {chunk.offset}, not at {size}")
        await perform(files, seam.Write(path, size, [chunk.data]))
        checksum.update(chunk.data)
        found[chunk.name] = (size + len(chunk.data), checksum)
    raise ProtocolError("a copy ended before its position came: ask again")


async def _check_and_sync(
    files: Files, folder: str, found: dict[str, tuple[int, xxhash.xxh3_64]], end: CopyEnd
) -> None:
    sums = {name: (size, checksum.intdigest()) for name, (size, checksum) in found.items()}
    if sums != end.files:
        raise ProtocolError("a copy is not what was sent: ask again")
    for name in sums:
        path = f"{folder}/{name}"
        await perform(files, seam.DataSync(path), seam.Close(path))
    await perform(files, seam.SyncDirectory(folder))


async def remove_copy(files: Files, folder: str) -> None:
    """Remove the files of a copy that nobody needs any more."""
    (names,) = await perform(files, seam.ListDirectory(folder))
    for name in names or ():
        await perform(files, seam.Unlink(f"{folder}/{name}"))


def _checked_file(name: str) -> str:
    if not name or "/" in name or "\0" in name or name in {".", ".."}:
        raise InvalidInput(f"{name!r} is no name of a file of a copy")
    if len(name) > _NAME_LENGTH_MAX:
        raise InvalidInput(f"a file of a copy has a name of {len(name)} characters")
    return name
