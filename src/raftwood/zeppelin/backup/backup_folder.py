"""`BackupFolder`: files that are written as a whole, in a folder or an object store.

What a URI names is up to Arrow: `file:`, `s3://`, `gs://`, `abfs://`, `hdfs://`. A file is there
with all its bytes or not at all: on a disk by another name first, in object stores by themselves.
"""

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from raftwood.base.errors import NotFound, StoreError
from raftwood.base.file_systems import file_system_of, folder_uri

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

Result = TypeVar("Result")


class BackupFolder:
    """Each call runs in a thread: the library waits for disks and networks."""

    def __init__(self, given: str) -> None:
        system, path = file_system_of(given)
        self._system: FileSystem = system
        self._path = path.rstrip("/")
        self.uri = folder_uri(given)

    def place(self, name: str) -> str:
        """A file as people find it."""
        return f"{self.uri}/{name}"

    async def write(self, name: str, data: bytes) -> None:
        """Durable when this returns; what had the name is replaced."""
        await self._blocking(name, self._write, data)

    async def read(self, name: str) -> bytes:
        """All bytes; `NotFound` where there is no such file."""
        found: bytes = await self._blocking(name, self._read)
        return found

    async def find(self, name: str) -> bytes | None:
        try:
            return await self.read(name)
        except NotFound:
            return None

    async def delete(self, name: str) -> None:
        """Nothing where it is gone already."""
        try:
            await self._blocking(name, self._system.delete_file)
        except NotFound:
            return

    async def beside(self, call: Callable[..., Result], *arguments: Any) -> Result:
        """Work for the processor that goes with a file, such as packing it, off the loop."""
        return await asyncio.to_thread(call, *arguments)

    async def _blocking(self, name: str, call: Any, *arguments: Any) -> Any:
        try:
            return await asyncio.to_thread(call, f"{self._path}/{name}", *arguments)
        except FileNotFoundError as error:
            raise NotFound(f"{self.place(name)} is not there") from error
        except OSError as error:
            raise StoreError(f"cannot use {self.place(name)}: {error}") from error

    def _write(self, path: str, data: bytes) -> None:
        system = self._system
        is_local = system.type_name == "local"
        folder = path.rpartition("/")[0]
        system.create_dir(folder)
        target = f"{path}.new" if is_local else path
        with system.open_output_stream(target) as stream:
            stream.write(data)
        if is_local:
            _sync(target)
            system.move(target, path)
            _sync(folder)

    def _read(self, path: str) -> bytes:
        with self._system.open_input_file(path) as file:
            data: bytes = file.read()
            return data


def _sync(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
