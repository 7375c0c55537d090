"""A whole copy of a partition, file by file in bounded chunks; the position comes last.

Full synchronisation is section 1.3 of Zeppelin's text, which runs rsync on a dump. A copy that
breaks off must not be taken for a partition: without the position at its end it is none. Nothing is
in place before the store takes the copy as a whole. Received files stay for the next attempt: most
files of an engine never change, so the next copy has many of them too.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Final

import xxhash

from raftwood.base import files as seam
from raftwood.base.errors import InvalidInput, ProtocolError, TooLarge
from raftwood.base.files import Buffer, Files, perform
from raftwood.net import Stream
from raftwood.zeppelin.records import EpochStart
from raftwood.zeppelin.replication.copy_pace import CopyThrottle
from raftwood.zeppelin.replication.wire import CopyChunk, CopyEnd, decode_copy, encode_copy

CHUNK_BYTES: Final = 256 << 10
FILES_MAX: Final = 100_000
_NAME_LENGTH_MAX: Final = 255
_READ_SHARE: Final = 8
"""Reading a file costs this many times less than sending it."""


async def copy_items(
    files: Files,
    folder: str,
    has: Mapping[str, tuple[int, int]],
    *,
    sequence: int,
    epochs: Sequence[EpochStart],
    throttle: CopyThrottle,
) -> AsyncGenerator[bytes, None]:
    """Yields the files of a folder, encoded for the wire, and at the end their position.

    A file that the other side `has` is left out, by its size and checksum: engines name files by
    numbers, and two engines may have different files of one name
    (`test_files_of_another_engine_are_not_taken_for_those_of_the_master`).
    """
    told: dict[str, tuple[int, int]] = {}
    (names,) = await perform(files, seam.ListDirectory(folder))
    sizes = {name: await _size(files, f"{folder}/{name}") for name in names or ()}
    total_bytes = sum(sizes.values())
    for name, size in sizes.items():
        path = f"{folder}/{name}"
        if name in has and has[name][0] == size:
            checksum = xxhash.xxh3_64()
            async for _, data in _chunks(files, path, size):
                await throttle.turn(len(data) // _READ_SHARE)
                checksum.update(data)
            if (size, checksum.intdigest()) == has[name]:
                told[name] = has[name]
                continue
        checksum = xxhash.xxh3_64()
        read = 0
        async for offset, data in _chunks(files, path, size):
            await throttle.turn(len(data))
            checksum.update(data)
            yield encode_copy(CopyChunk(name, offset, bytes(data), total_bytes))
            total_bytes, read = 0, offset + len(data)
        told[name] = (read, checksum.intdigest())
    yield encode_copy(CopyEnd(told, sequence, tuple(epochs)))


async def _size(files: Files, path: str) -> int:
    (size,) = await perform(files, seam.Size(path))
    return int(size)


async def _chunks(files: Files, path: str, size: int) -> AsyncGenerator[tuple[int, Buffer], None]:
    """Yields the chunks of a file, at least one, so that an empty file is sent too."""
    offset = 0
    while True:
        (data,) = await perform(files, seam.Read(path, offset, CHUNK_BYTES))
        yield offset, data
        offset += len(data)
        if offset >= size or not len(data):
            return


class IncomingCopy:
    """A folder that receives a copy, over several attempts if needed."""

    def __init__(self, files: Files, folder: str, throttle: CopyThrottle) -> None:
        self.folder = folder
        self.whole: dict[str, tuple[int, int]] = {}
        """Files received whole in earlier attempts, each with its size and its checksum."""
        self._files = files
        self._throttle = throttle

    async def receive(self, stream: Stream, came: Callable[[CopyChunk], None]) -> CopyEnd:
        """Writes and syncs the chunks; raises `ProtocolError` if the copy is not whole."""
        files = self._files
        await perform(files, seam.MakeDirectory(self.folder))
        amid, size, checksum = "", 0, xxhash.xxh3_64()
        async for item in stream:
            chunk = decode_copy(item)
            if amid and (isinstance(chunk, CopyEnd) or chunk.name != amid):
                self.whole[amid] = (size, checksum.intdigest())
                amid = ""
            if isinstance(chunk, CopyEnd):
                await self._check_and_sync(chunk)
                return chunk
            came(chunk)
            path = f"{self.folder}/{_checked_file(chunk.name)}"
            if not amid:
                amid, size, checksum = chunk.name, 0, xxhash.xxh3_64()
                self.whole.pop(amid, None)
                if len(self.whole) >= FILES_MAX:
                    raise TooLarge(f"a copy has more than {FILES_MAX} files")
                await perform(files, seam.Open(path, create=True), seam.Truncate(path, 0))
            if chunk.offset != size:
                raise ProtocolError(
                    f"{chunk.name} of a copy goes on at {chunk.offset}, not at {size}"
                )
            await self._throttle.turn(len(chunk.data))
            await perform(files, seam.Write(path, size, [chunk.data]))
            checksum.update(chunk.data)
            size += len(chunk.data)
        raise ProtocolError("a copy ended before its position came: ask again")

    async def _check_and_sync(self, end: CopyEnd) -> None:
        """Checks the copy against the sender's list, and removes all other files: the engine opened
        in the folder would take a file of an earlier attempt for its own
        (`test_a_copy_that_is_not_what_was_promised_changes_nothing`).
        """
        files = self._files
        if any(self.whole.get(name) != each for name, each in end.files.items()):
            raise ProtocolError("a copy is not what was sent: ask again")
        (names,) = await perform(files, seam.ListDirectory(self.folder))
        for name in names or ():
            path = f"{self.folder}/{name}"
            if name not in end.files:
                await perform(files, seam.Unlink(path))
            else:
                await perform(files, seam.Open(path), seam.DataSync(path), seam.Close(path))
        await perform(files, seam.SyncDirectory(self.folder))

    async def close(self) -> None:
        """Closes the files, because the next attempt may be hours away."""
        (names,) = await perform(self._files, seam.ListDirectory(self.folder))
        for name in names or ():
            await perform(self._files, seam.Close(f"{self.folder}/{name}"))

    async def remove(self) -> None:
        await remove_copy(self._files, self.folder)
        self.whole.clear()


async def remove_copy(files: Files, folder: str) -> None:
    """Removes the files of a copy that is no longer needed."""
    (names,) = await perform(files, seam.ListDirectory(folder))
    for name in names or ():
        await perform(files, seam.Unlink(f"{folder}/{name}"))


def _checked_file(name: str) -> str:
    if not name or "/" in name or "\0" in name or name in {".", ".."}:
        raise InvalidInput(f"{name!r} is no name of a file of a copy")
    if len(name) > _NAME_LENGTH_MAX:
        raise InvalidInput(f"a file of a copy has a name of {len(name)} characters")
    return name
