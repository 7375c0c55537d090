"""Where offloaded ledgers are kept: objects that are written once, read in parts, and deleted."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Protocol

from raftwood.base.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


class OffloadStore(Protocol):
    """A folder of files, or an object store."""

    async def write(self, name: str, parts: AsyncIterator[bytes]) -> None:
        """An object of these parts, which lasts when it returns."""
        ...

    async def rename(self, name: str, new: str) -> None:
        """At once or not at all; one of the new name is replaced."""
        ...

    async def size(self, name: str) -> int:
        """In bytes; `NotFound` where there is none."""
        ...

    async def read(self, name: str, *, offset: int, length: int) -> bytes: ...

    async def delete(self, name: str) -> None:
        """Nothing where it is gone already."""
        ...


class ArrowOffloadStore:
    """An `OffloadStore` on any file system of pyarrow: local folders, S3, GCS, Azure, HDFS."""

    def __init__(self, file_system: "FileSystem", folder: str) -> None:
        self._file_system = file_system
        self._folder = folder.rstrip("/")

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    async def write(self, name: str, parts: AsyncIterator[bytes]) -> None:
        path, system = self._path(name), self._file_system
        await _blocking(system.create_dir, path.rpartition("/")[0])
        stream = await _blocking(system.open_output_stream, path)
        try:
            async for part in parts:
                await _blocking(stream.write, part)
        finally:
            await _blocking(stream.close)
        await _blocking(self._sync, path)

    async def rename(self, name: str, new: str) -> None:
        path = self._path(new)
        await _blocking(self._file_system.move, self._path(name), path)
        await _blocking(self._sync, path.rpartition("/")[0])
        await _blocking(self._sync, self._folder)

    def _sync(self, path: str) -> None:
        """The ledger is deleted after this; object stores are durable by themselves."""
        if self._file_system.type_name == "local":
            file = os.open(path, os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)

    async def size(self, name: str) -> int:
        info = await _blocking(self._file_system.get_file_info, self._path(name))
        if info.size is None:
            raise NotFound(f"{self._path(name)} is not there")
        return int(info.size)

    async def read(self, name: str, *, offset: int, length: int) -> bytes:
        return bytes(await _blocking(self._read, self._path(name), offset, length))

    def _read(self, path: str, offset: int, length: int) -> bytes:
        with self._file_system.open_input_file(path) as file:
            found: bytes = file.read_at(length, offset)
            return found

    async def delete(self, name: str) -> None:
        with contextlib.suppress(NotFound):
            await _blocking(self._file_system.delete_file, self._path(name))


async def _blocking(call: Any, *arguments: Any) -> Any:
    """In a thread: the library waits for disks and networks."""
    try:
        return await asyncio.to_thread(call, *arguments)
    except FileNotFoundError as error:
        raise NotFound(f"{arguments[0]} is not there") from error
    except OSError as error:
        raise Unavailable(f"the store of offloaded ledgers failed: {error}") from error
