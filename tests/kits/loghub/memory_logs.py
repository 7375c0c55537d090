"""`Logs` in memory, for tests of what stands above them."""

import asyncio
from collections.abc import Sequence

from raftwood.base.errors import InvalidInput, LogSealed, NotFound, OutOfRange
from raftwood.base.files import Buffer
from raftwood.base.position import Position
from raftwood.base.seams import Bounds, Log, StoredBatch


class MemoryLog:
    """A `Log` that lives as long as the object; its positions leave gaps, as real ones do."""

    def __init__(self, *, first: int = 3, step: int = 2) -> None:
        self._first = first
        self._step = step
        self._next = first
        self._batches: dict[int, bytes] = {}
        self._known: dict[tuple[bytes, int], int | None] = {}
        self._is_sealed = False
        self._bytes = 0
        self.is_removed = False
        self._changed = asyncio.Condition()

    async def append(self, batch: Sequence[Buffer], *, producer: bytes, sequence: int) -> Position:
        self._check_there()
        if not producer or sequence < 0:
            raise InvalidInput(f"sequence {sequence} of {producer!r}: give a name, and 0 or more")
        await asyncio.sleep(0)
        key = (producer, sequence)
        if self._known.setdefault(key, None if self._is_sealed else self._next) is None:
            raise LogSealed("the log has ended: nothing was stored")
        position = self._known[key]
        assert position is not None
        if position == self._next:
            stored = self._batches[position] = b"".join(batch)
            self._next += self._step
            self._bytes += len(stored)
            await self._notify()
        return Position(position)

    def _check_there(self) -> None:
        if self.is_removed:
            raise NotFound("the log was removed")

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def read(
        self, start: Position, *, bytes_max: int, wait_ms: int = 0
    ) -> tuple[list[StoredBatch], Position]:
        self._check_there()
        if not self._first <= start <= self._next:
            raise OutOfRange(f"{start} cannot be read: {self._first} to {self._next} can")
        if start == self._next and wait_ms:
            try:
                async with asyncio.timeout(wait_ms / 1000), self._changed:
                    await self._changed.wait()
            except TimeoutError:
                return [], start
        found: list[StoredBatch] = []
        size = 0
        for position in range(start, self._next):
            # What is no batch is an entry too: a read of few bytes may find nothing but that.
            data = self._batches.get(position, b"internal")
            size += len(data)
            if position > start and size > bytes_max:
                return found, Position(position)
            if position in self._batches:
                found.append(StoredBatch(Position(position), data))
        return found, Position(self._next)

    async def truncate(self, before: Position) -> None:
        self._check_there()
        if before > self._next:
            raise OutOfRange(f"{before} cannot be truncated: up to {self._next} can")
        self._first = max(self._first, before)
        for position in [each for each in self._batches if each < self._first]:
            del self._batches[position]

    async def bounds(self) -> Bounds:
        self._check_there()
        return Bounds(Position(self._first), Position(self._next), self._is_sealed, self._bytes)

    async def seal(self) -> Position:
        self._check_there()
        self._is_sealed = True
        await self._notify()
        return Position(self._next)


class MemoryLogs:
    """`Logs`, each a `MemoryLog`."""

    def __init__(self) -> None:
        self.logs: dict[str, MemoryLog] = {}

    async def create(self, name: str) -> None:
        self.logs.setdefault(name, MemoryLog())

    async def open(self, name: str) -> Log:
        if name not in self.logs:
            raise NotFound(f"there is no log {name!r}")
        return self.logs[name]

    async def remove(self, name: str) -> None:
        log = self.logs.pop(name, None)
        if log is not None:
            log.is_removed = True

    async def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self.logs if name.startswith(prefix))
