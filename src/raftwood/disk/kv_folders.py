"""`RocksFolders`: many RocksDBs, each in a folder of its own below one folder."""

import asyncio
import os
import shutil

from raftwood.base.errors import StoreError
from raftwood.disk.kv_rocksdb import RocksEngine


class RocksFolders:
    """Opens and removes engines by the names of their folders."""

    def __init__(
        self, path: str, *, cache_bytes: int = 64 << 20, write_buffer_bytes: int = 64 << 20
    ) -> None:
        self._path = path.rstrip("/")
        self._cache_bytes = cache_bytes
        self._write_buffer_bytes = write_buffer_bytes

    def folder(self, name: str) -> str:
        return f"{self._path}/{name}"

    async def open(self, folder: str, *, is_read_only: bool = False) -> RocksEngine:
        """The engine in a folder, new where there is none."""
        if not is_read_only:
            await asyncio.to_thread(os.makedirs, self._path, exist_ok=True)
        return await RocksEngine.open(
            folder,
            cache_bytes=self._cache_bytes,
            write_buffer_bytes=self._write_buffer_bytes,
            is_read_only=is_read_only,
        )

    async def remove(self, name: str) -> None:
        """The folder and all in it; nothing where there is none."""
        try:
            await asyncio.to_thread(shutil.rmtree, self.folder(name))
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(
                f"{self.folder(name)} cannot be removed: {error.strerror}; check its permissions"
            ) from error

    async def names(self) -> list[str]:
        """Of all folders, in order."""
        try:
            return sorted(await asyncio.to_thread(os.listdir, self._path))
        except FileNotFoundError:
            return []
