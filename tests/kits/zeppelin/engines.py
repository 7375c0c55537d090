"""Storage engines in memory, each with one file that a flush writes anew through `Files`.

So they lie on the same simulated disk as the log, crash images hold both, and a copy is files that
can be sent. As RocksDB does, an engine flushes by itself now and then: any beginning of what was
written may be there after a crash.
"""

import asyncio
import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import msgspec
from xxhash import xxh3_64_digest

from raftwood.base import files as seam
from raftwood.base.errors import AlreadyExists, ShuttingDown, StoreDamaged
from raftwood.base.files import Buffer, Completion, Files, perform
from raftwood.base.seams import Delete, DeleteRange, KvEngine, Mutation, Put

PAIRS = "PAIRS"
FLUSHES_BY_ITSELF = 0.05
_READ_S = 0.001
_Pairs = list[tuple[bytes, bytes]]


class FileEngines:
    """Implements `Engines`."""

    def __init__(self, files: Files, source: random.Random, path: str = "/data/engines") -> None:
        self._files = files
        self._random = source
        self._path = path

    def folder(self, name: str) -> str:
        return f"{self._path}/{name}"

    async def open(self, folder: str, *, is_read_only: bool = False) -> KvEngine:
        await perform(
            self._files,
            seam.MakeDirectory(folder),
            seam.SyncDirectory(self._path),
            seam.SyncDirectory(self._path.rpartition("/")[0]),
        )
        path = f"{folder}/{PAIRS}"
        (size,) = await perform(self._files, seam.Size(path))
        pairs: _Pairs = []
        if size:
            (data,) = await perform(self._files, seam.Read(path, 0, size))
            if bytes(data[:8]) != _checksum(data[8:]):
                raise StoreDamaged(f"the engine in {folder} is damaged")
            pairs = msgspec.msgpack.decode(data[8:], type=_Pairs)
        return FileEngine(self._files, self._random, folder, dict(pairs), is_read_only=is_read_only)

    async def remove(self, name: str) -> None:
        folder = self.folder(name)
        (listed,) = await perform(self._files, seam.ListDirectory(folder))
        for each in listed or ():
            await perform(self._files, seam.Unlink(f"{folder}/{each}"), seam.SyncDirectory(folder))

    async def names(self) -> list[str]:
        """Of folders that are not empty: `Files` removes none."""
        (listed,) = await perform(self._files, seam.ListDirectory(self._path))
        found = []
        for name in listed or ():
            (inside,) = await perform(self._files, seam.ListDirectory(self.folder(name)))
            found += [name] if inside else []
        return found


class FileEngine:
    """Implements `KvEngine`."""

    def __init__(
        self,
        files: Files,
        source: random.Random,
        folder: str,
        pairs: dict[bytes, bytes],
        *,
        is_read_only: bool = False,
    ) -> None:
        self._is_read_only = is_read_only
        self._files = files
        self._random = source
        self._folder = folder
        self._pairs = pairs
        # What was there before is on the disk alone until it is read or written.
        self._cold = set(pairs)
        self._keys: list[bytes] | None = None
        self._is_open = True
        self._saves = 0

    def get(self, key: bytes) -> bytes | None:
        self._check_open()
        self._cold.discard(key)
        return self._pairs.get(key)

    def get_cached(self, key: bytes) -> tuple[bool, bytes | None]:
        self._check_open()
        is_known = key not in self._cold
        return is_known, self._pairs.get(key) if is_known else None

    async def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check_open()
        await asyncio.sleep(self._random.uniform(0, _READ_S))
        self._cold.difference_update(keys)
        return [self._pairs.get(key) for key in keys]

    def write_batch(self, mutations: Sequence[Mutation]) -> None:
        self._check_open()
        for mutation in mutations:
            if not isinstance(mutation, DeleteRange):
                self._cold.discard(mutation.key)
            if isinstance(mutation, Put):
                self._pairs[mutation.key] = mutation.value
            elif isinstance(mutation, Delete):
                self._pairs.pop(mutation.key, None)
            else:
                start, end = mutation.start, mutation.end
                for key in [each for each in self._pairs if start <= each < end]:
                    del self._pairs[key]
        self._keys = None
        if self._random.random() < FLUSHES_BY_ITSELF:
            self._files.submit(self._saving(self._folder), _succeeded)

    def scan(
        self, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        self._check_open()
        if self._keys is None:
            self._keys = sorted(self._pairs)
        last = len(self._keys) if end is None else bisect_left(self._keys, end)
        chosen = self._keys[bisect_left(self._keys, start) : last]
        pairs = [(key, self._pairs[key]) for key in chosen]
        return iter(pairs[::-1] if reverse else pairs)

    async def flush(self) -> None:
        self._check_open()
        await perform(self._files, *self._saving(self._folder))

    async def checkpoint(self, folder: str) -> None:
        self._check_open()
        (size,) = await perform(self._files, seam.Size(f"{folder}/{PAIRS}"))
        if size is not None:
            raise AlreadyExists(f"{folder} exists")
        saving = self._saving(folder)
        parent = folder.rpartition("/")[0]
        await perform(self._files, seam.MakeDirectory(folder), seam.SyncDirectory(parent), *saving)

    async def close(self) -> None:
        if self._is_open:
            if not self._is_read_only:
                await self.flush()
            self._is_open = False

    def _saving(self, folder: str) -> list[seam.Operation]:
        """One step: the file is the old one or the new one."""
        self._saves += 1
        temporary, path = f"{folder}/{PAIRS}.{self._saves}", f"{folder}/{PAIRS}"
        data = msgspec.msgpack.encode(list(self._pairs.items()))
        return [
            seam.Open(temporary, create=True),
            seam.Truncate(temporary, 0),
            seam.Write(temporary, 0, [_checksum(data), data]),
            seam.DataSync(temporary),
            seam.Rename(temporary, path),
            seam.Close(path),
            seam.SyncDirectory(folder),
        ]

    def _check_open(self) -> None:
        if not self._is_open:
            raise ShuttingDown(f"the engine in {self._folder} is closed")


def _checksum(data: Buffer) -> bytes:
    return xxh3_64_digest(data)


def _succeeded(completion: Completion) -> None:
    if completion.error is not None:
        raise completion.error
