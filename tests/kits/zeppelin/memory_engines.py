"""Copies of partitions in memory, where `MemoryPartitionStore` puts them to be read."""

import asyncio
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from raftwood.base.errors import ShuttingDown
from raftwood.base.seams import KvEngine, Mutation
from raftwood.zeppelin.node.engine import encode_value, engine_key
from raftwood.zeppelin.records import Value


class MemoryEngines:
    """Implements `Engines` for what is only read."""

    def __init__(self) -> None:
        self.folders: dict[str, dict[bytes, bytes]] = {}

    def folder(self, name: str) -> str:
        return f"/engines/{name}"

    def put(self, folder: str, values: Mapping[bytes, Value]) -> None:
        self.folders[folder] = {
            engine_key(key): encode_value(value.data, value.expires_ms)
            for key, value in values.items()
        }

    async def open(self, folder: str, *, is_read_only: bool = False) -> KvEngine:
        assert is_read_only
        return _MemoryEngine(folder, self.folders[folder])

    async def remove(self, name: str) -> None:
        await asyncio.sleep(0)
        self.folders.pop(self.folder(name), None)

    async def names(self) -> list[str]:
        return sorted(folder.rpartition("/")[2] for folder in self.folders)


class _MemoryEngine:
    def __init__(self, folder: str, pairs: dict[bytes, bytes]) -> None:
        self._folder = folder
        self._pairs = pairs
        self._keys = sorted(pairs)
        self._is_open = True

    def get(self, key: bytes) -> bytes | None:
        return self._pairs.get(key)

    def get_cached(self, key: bytes) -> tuple[bool, bytes | None]:
        return True, self._pairs.get(key)

    async def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._pairs.get(key) for key in keys]

    def write_batch(self, mutations: Sequence[Mutation]) -> None:
        raise NotImplementedError

    def scan(
        self, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        assert not reverse
        last = len(self._keys) if end is None else bisect_left(self._keys, end)
        for key in self._keys[bisect_left(self._keys, start) : last]:
            if not self._is_open:
                raise ShuttingDown(f"{self._folder} is closed")
            yield key, self._pairs[key]

    async def flush(self) -> None:
        raise NotImplementedError

    async def checkpoint(self, folder: str) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        self._is_open = False
