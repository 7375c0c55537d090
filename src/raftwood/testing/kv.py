"""The `KvEngine` seam in memory: ordered; a crash loses what was not flushed.

`SimulatedKvDisk` belongs to a machine and survives crashes. After a crash a seeded number of the
batches since the last flush is still there: always the first ones, as an engine without a log keeps
no holes.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from raftwood.base.errors import AlreadyExists, ShuttingDown, StoreLocked
from raftwood.base.seams import Delete, DeleteRange, Mutation, Put

if TYPE_CHECKING:
    from raftwood.testing.loop import SimulatedLoop
    from raftwood.testing.nodes import Process

_FLUSH_S = (0.001, 0.02)
_MULTI_GET_S = (0.00005, 0.001)


class _Stored:
    """The contents of one folder: durable pairs, and batches that wait for a flush."""

    def __init__(self, pairs: dict[bytes, bytes] | None = None) -> None:
        self.durable: dict[bytes, bytes] = pairs or {}
        self.unflushed: list[tuple[Mutation, ...]] = []
        self.flushed = 0
        """How many batches were flushed so far."""
        self.engine: SimulatedKvEngine | None = None


class SimulatedKvDisk:
    """The folders of one machine's engines."""

    def __init__(self, loop: "SimulatedLoop", name: str = "kv") -> None:
        self.loop = loop
        self._random = loop.random_of(f"kv {name}")
        self._folders: dict[str, _Stored] = {}

    def process_started(self, process: "Process") -> None:
        """Registers for the end of the process, which loses the engines' memory."""
        process.resources[self] = None

    def process_ended(self, *, power_lost: bool) -> None:  # noqa: ARG002
        self.crash()

    def crash(self) -> None:
        """Drops all open engines; the first of each one's unflushed batches stay."""
        for folder in sorted(self._folders):
            stored = self._folders[folder]
            stored.engine = None
            kept = self._random.randint(0, len(stored.unflushed))
            for batch in stored.unflushed[:kept]:
                _apply(batch, stored.durable)
            stored.unflushed.clear()

    async def work(self, seconds: tuple[float, float]) -> None:
        await asyncio.sleep(self._random.uniform(*seconds))

    def open(self, folder: str) -> "SimulatedKvEngine":
        stored = self._folders.setdefault(folder, _Stored())
        if stored.engine is not None:
            raise StoreLocked(f"{folder} is open already: close it first")
        stored.engine = SimulatedKvEngine(self, stored)
        return stored.engine

    def exists(self, folder: str) -> bool:
        return folder in self._folders

    def remove(self, folder: str) -> None:
        self._folders.pop(folder, None)

    def copy_to(self, folder: str, pairs: dict[bytes, bytes]) -> None:
        if folder in self._folders:
            raise AlreadyExists(f"{folder} exists: a checkpoint needs a new folder")
        self._folders[folder] = _Stored(pairs)


class SimulatedKvEngine:
    """Pairs in key order."""

    def __init__(self, disk: SimulatedKvDisk, stored: _Stored) -> None:
        self._disk = disk
        self._stored = stored
        self._pairs = stored.durable.copy()
        self._keys = sorted(self._pairs)
        # Earlier pairs are on disk alone until they are read or written.
        self._cold = set(self._pairs)

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
        await self._disk.work(_MULTI_GET_S)
        self._check_open()
        self._cold.difference_update(keys)
        return [self._pairs.get(key) for key in keys]

    def write_batch(self, mutations: Sequence[Mutation]) -> None:
        self._check_open()
        batch = tuple(mutations)
        self._stored.unflushed.append(batch)
        known = len(self._pairs)
        _apply(batch, self._pairs)
        if self._cold:
            written = (each.key for each in batch if not isinstance(each, DeleteRange))
            self._cold.difference_update(written)
        added_only = all(isinstance(mutation, Put) for mutation in batch)
        if not added_only or len(self._pairs) != known:
            # Sorted again at the next scan, not once per write.
            self._keys = []

    def scan(
        self, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        self._check_open()
        if len(self._keys) != len(self._pairs):
            self._keys = sorted(self._pairs)
        first = bisect_left(self._keys, start)
        last = len(self._keys) if end is None else bisect_left(self._keys, end)
        found = [(key, self._pairs[key]) for key in self._keys[first:last]]
        return self._while_open(found[::-1] if reverse else found)

    def _while_open(self, pairs: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for pair in pairs:
            self._check_open()
            yield pair

    async def flush(self) -> None:
        """Takes its time; batches written meanwhile wait for the next flush."""
        self._check_open()
        stored = self._stored
        target = stored.flushed + len(stored.unflushed)
        await self._disk.work(_FLUSH_S)
        self._check_open()
        # Another flush may have covered a part of it.
        count = max(0, target - stored.flushed)
        for batch in stored.unflushed[:count]:
            _apply(batch, stored.durable)
        del stored.unflushed[:count]
        stored.flushed += count

    async def checkpoint(self, folder: str) -> None:
        await self.flush()
        self._disk.copy_to(folder, self._stored.durable.copy())

    async def close(self) -> None:
        """Flushes and releases the folder."""
        if self._stored.engine is self:
            await self.flush()
            self._stored.engine = None

    def _check_open(self) -> None:
        if self._stored.engine is not self:
            raise ShuttingDown("the engine is closed, or its process crashed")


def _apply(batch: Sequence[Mutation], pairs: dict[bytes, bytes]) -> None:
    for mutation in batch:
        if isinstance(mutation, Put):
            pairs[mutation.key] = mutation.value
        elif isinstance(mutation, Delete):
            pairs.pop(mutation.key, None)
        elif isinstance(mutation, DeleteRange):
            for key in [each for each in pairs if mutation.start <= each < mutation.end]:
                del pairs[key]
