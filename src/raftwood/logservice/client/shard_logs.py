"""The log service as the seams `Log` (`ShardLog`) and `Logs` (`ShardLogs`).

A position is an LSN. A batch is one record. If any client repeats the same (producer, sequence)
after any failure, the shard answers the position of the first write. A shard remembers the last
`WINDOW` sequences of each producer and refuses older ones with `SequenceForgotten`.

The end of a sealed shard is `Bounds.next` for ever: no read goes beyond it, and a read that starts
there returns nothing once its time is over.

Each log is found by its name. A removed shard still answers until its stores learn of the removal;
then calls raise `NotFound`. Names should not be used again: a log that was opened before stays the
old one.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from weakref import WeakValueDictionary

from raftwood.base.caches import LruCache
from raftwood.base.environment import Environment
from raftwood.base.errors import AlreadyExists, LogSealed, NotFound
from raftwood.base.files import Buffer
from raftwood.base.position import Position
from raftwood.base.seams import Bounds, Log, StoredBatch
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.errors import LogShardNotFound, NotLeaseholder
from raftwood.logservice.hakeeper.commands import AddShard, RemoveShard
from raftwood.logservice.hakeeper.messages import is_log
from raftwood.logservice.records import SEALED
from raftwood.net.stores import Stores


class ShardLog:
    """One shard as a `Log`, over a shared client that its owner closes."""

    def __init__(self, client: AsyncLogClient) -> None:
        self._client = client

    async def append(self, batch: Sequence[Buffer], *, producer: bytes, sequence: int) -> Position:
        """Appends a batch durably; after a timeout the caller may repeat the same call."""
        try:
            lsn = await self._client.append_pieces(batch, producer=producer, sequence=sequence)
        except NotLeaseholder as error:
            if error.holder == SEALED:
                raise LogSealed("the log has ended: nothing was stored, nor will be") from error
            raise
        return Position(lsn)

    async def read(
        self, start: Position, *, bytes_max: int, wait_ms: int = 0
    ) -> tuple[list[StoredBatch], Position]:
        """Returns batches from `start` on, at least one if there is any, and where to read next."""
        records, next_lsn = await self._client.read_views(
            start, bytes_max=bytes_max, wait_ms=wait_ms
        )
        return [StoredBatch(Position(lsn), data) for lsn, data in records], Position(next_lsn)

    async def truncate(self, before: Position) -> None:
        """Allow everything below `before` to be freed."""
        await self._client.truncate(max(0, before - 1))

    async def bounds(self) -> Bounds:
        log = (await self._client.info()).log
        return Bounds(
            Position(log.first_lsn),
            Position(log.next_lsn),
            is_sealed=log.sealed_lsn > 0,
            appended_bytes=log.appended_bytes,
        )

    async def seal(self) -> Position:
        """Ends the log for ever; returns its end."""
        return Position(await self._client.seal())


OPENED_MAX: Final = 4_096
"""Logs that are kept open, the most recently used."""
TIMEOUT_MS: Final = 15_000
"""The time for one call. A new shard has a leader after some heartbeats."""


class ShardLogs:
    """All shards as `Logs`, over shared connections, which need an operator's role to make and
    remove logs.

    Use `close` when done. An opened log stays usable until then, however many are opened later.
    """

    def __init__(
        self,
        environment: Environment,
        stores: Stores,
        *,
        replicas: int,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self._environment = environment
        self._stores = stores
        self._replicas = replicas
        self._timeout_ms = timeout_ms
        self._keeper = KeeperClient(stores, timeout_ms=timeout_ms)
        self._opened: LruCache[str, _NamedLog] = LruCache(OPENED_MAX)
        self._used: WeakValueDictionary[int, _NamedLog] = WeakValueDictionary()
        """All logs that a caller may still use."""
        self._next_log = 0

    async def create(self, name: str) -> None:
        """Creates an empty log; does nothing if it exists."""
        try:
            # The name is the nonce as well: a repeated request makes the same shard.
            await self._keeper.number(AddShard(name, self._replicas, 0, name))
        except AlreadyExists:
            return

    async def open(self, name: str) -> Log:
        """Opens a log, and waits for a new one to begin; `NotFound` if there is none."""
        log = self._opened.get(name)
        if log is None:
            opened = await self._open(name)
            log = self._opened.get(name)
            if log is None:  # Else another task was faster.
                log = opened
                self._opened.put(name, log)
        return log

    async def _open(self, name: str) -> "_NamedLog":
        shard = (await self._keeper.find_shard(name)).shard
        if not is_log(shard):
            raise NotFound(f"shard {name!r} is no log: choose another")
        client = await AsyncLogClient.attach(
            self._environment, self._stores, shard=shard, timeout_ms=self._timeout_ms
        )
        log = self._used[self._next_log] = _NamedLog(self, name, client)
        self._next_log += 1
        return log

    async def remove(self, name: str) -> None:
        """Removes a log and all its batches; does nothing if it is gone."""
        try:
            shard = (await self._keeper.find_shard(name)).shard
            await self._keeper.command(RemoveShard(shard))
        except NotFound:
            pass
        self.forget(name)

    async def names(self, prefix: str) -> list[str]:
        """Returns the names of logs that begin with `prefix`, in order."""
        return await self._keeper.log_names(prefix)

    def forget(self, name: str) -> None:
        """Marks an open log as removed: its users look the name up again."""
        log = self._opened.pop(name)
        if log is not None:
            log.is_removed = True

    async def close(self) -> None:
        for log in list(self._used.values()):
            await log.client.close()
        await self._keeper.close()


class _NamedLog:
    """A `ShardLog` that looks its name up again once its shard is gone."""

    def __init__(self, logs: ShardLogs, name: str, client: AsyncLogClient) -> None:
        self._logs = logs
        self._name = name
        self._log = ShardLog(client)
        self.client = client
        self.is_removed = False

    @contextmanager
    def _there(self) -> Iterator[None]:
        if self.is_removed:
            raise LogShardNotFound(f"log {self._name!r} was removed")
        try:
            yield
        except LogShardNotFound:
            self._logs.forget(self._name)
            raise

    async def append(self, batch: Sequence[Buffer], *, producer: bytes, sequence: int) -> Position:
        with self._there():
            return await self._log.append(batch, producer=producer, sequence=sequence)

    async def read(
        self, start: Position, *, bytes_max: int, wait_ms: int = 0
    ) -> tuple[list[StoredBatch], Position]:
        with self._there():
            return await self._log.read(start, bytes_max=bytes_max, wait_ms=wait_ms)

    async def truncate(self, before: Position) -> None:
        with self._there():
            await self._log.truncate(before)

    async def bounds(self) -> Bounds:
        with self._there():
            return await self._log.bounds()

    async def seal(self) -> Position:
        with self._there():
            return await self._log.seal()
