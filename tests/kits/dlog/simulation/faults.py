"""What stands between a client and the world: delays, lost answers, and the step it dies at."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from raftwood.base.errors import ConnectionLost
from raftwood.base.files import Buffer
from raftwood.base.seams import (
    Compare,
    KeyChange,
    KeyOperation,
    KeyRange,
    MetaStatus,
    MetaStore,
    TransactionOutcome,
    Versioned,
)
from raftwood.dlog.ledgers.metadata import BookieInfo, LedgerConfig, LedgerMetadata
from raftwood.dlog.ledgers.seams import LedgerReader, LedgerStore, LedgerWriter

Result = TypeVar("Result")


class Client:
    """One process: it dies at a step if it is told to, before it or behind it."""

    def __init__(self, rng: random.Random, *, delay_ms: float = 0, lost: float = 0) -> None:
        self.rng = rng
        self.delay_ms = delay_ms
        self.lost = lost
        self.steps: list[str] = []
        self.crash_at: int | None = None
        self.crashed = asyncio.get_running_loop().create_future()
        self.late: set[asyncio.Task[Any]] = set()

    def crash(self) -> None:
        if not self.crashed.done():
            self.crashed.set_result(None)

    async def step(self, name: str) -> None:
        if self.crash_at is not None and len(self.steps) == self.crash_at:
            self.crash()
        self.steps.append(name)
        if self.crashed.done():
            await asyncio.get_running_loop().create_future()
        if self.delay_ms:
            await asyncio.sleep(self.rng.random() * self.delay_ms / 1000)

    async def call(self, name: str, work: Awaitable[Result]) -> Result:
        try:
            await self.step(f"before {name}")
        except BaseException:
            if asyncio.iscoroutine(work):
                work.close()
            raise
        result = await work
        await self.step(f"after {name}")
        return result


class FaultyMeta:
    """A `MetaStore` whose compare-and-set may be carried out late, and without an answer."""

    def __init__(self, inner: MetaStore, client: Client) -> None:
        self._inner = inner
        self._client = client

    async def get(self, key: str) -> Versioned | None:
        return await self._client.call("get", self._inner.get(key))

    async def compare_and_set(
        self, key: str, value: bytes | None, *, version: int, lease: int = 0
    ) -> int | None:
        client = self._client
        await client.step("before set")
        if client.rng.random() < client.lost:
            match client.rng.randrange(3):
                case 0:
                    await self._inner.compare_and_set(key, value, version=version)
                case 1:
                    task = asyncio.create_task(self._late(key, value, version))
                    client.late.add(task)
                case _:
                    pass
            raise ConnectionLost("the answer was lost")
        result = await self._inner.compare_and_set(key, value, version=version, lease=lease)
        await client.step("after set")
        return result

    async def _late(self, key: str, value: bytes | None, version: int) -> None:
        await asyncio.sleep(self._client.rng.random() * 0.1)
        await self._inner.compare_and_set(key, value, version=version)

    async def range(
        self, *, prefix: str = "", start: str = "", end: str | None = None, limit: int = 1000
    ) -> KeyRange:
        return await self._inner.range(prefix=prefix, start=start, end=end, limit=limit)

    async def transact(
        self,
        compares: Sequence[Compare],
        then: Sequence[KeyOperation],
        otherwise: Sequence[KeyOperation] = (),
    ) -> TransactionOutcome:
        return await self._inner.transact(compares, then, otherwise)

    async def grant_lease(self, *, ttl_ms: int) -> int:
        return await self._inner.grant_lease(ttl_ms=ttl_ms)

    async def keep_alive(self, lease: int) -> None:
        await self._inner.keep_alive(lease)

    async def revoke_lease(self, lease: int) -> None:
        await self._inner.revoke_lease(lease)

    def watch(self, prefix: str, *, after_version: int) -> AsyncIterator[tuple[KeyChange, ...]]:
        return self._inner.watch(prefix, after_version=after_version)

    async def status(self) -> MetaStatus:
        return await self._inner.status()

    async def close(self) -> None:
        pass


class FaultyWriter:
    """A `LedgerWriter` whose client may be dead: then it neither sends nor hears."""

    def __init__(self, inner: LedgerWriter, client: Client) -> None:
        self._inner = inner
        self._client = client

    @property
    def ledger(self) -> int:
        return self._inner.ledger

    @property
    def last_confirmed(self) -> int:
        return self._inner.last_confirmed

    @property
    def length_bytes(self) -> int:
        return self._inner.length_bytes

    def append(self, data: Buffer) -> "asyncio.Future[int]":
        client = self._client
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if client.crash_at is not None and len(client.steps) == client.crash_at:
            client.crash()
        client.steps.append("append")
        if client.crashed.done():
            return answer

        def answered(future: "asyncio.Future[int]") -> None:
            error = future.exception()
            if client.crashed.done() or answer.done():
                return
            if error is None:
                answer.set_result(future.result())
            else:
                answer.set_exception(error)
                answer.exception()

        self._inner.append(data).add_done_callback(answered)
        return answer

    async def close(self) -> None:
        await self._client.call("close", self._inner.close())

    async def abandon(self) -> None:
        await self._inner.abandon()


class FaultyLedgers:
    """A `LedgerStore` as one client sees it."""

    def __init__(self, inner: LedgerStore, client: Client) -> None:
        self._inner = inner
        self._client = client
        self.created: list[int] = []

    async def create(
        self, config: LedgerConfig, *, properties: Mapping[str, bytes] | None = None
    ) -> LedgerWriter:
        created = self._inner.create(config, properties=properties)
        writer = await self._client.call("create", created)
        self.created.append(writer.ledger)
        return FaultyWriter(writer, self._client)

    async def open(self, ledger: int, *, recover: bool, password: bytes = b"") -> LedgerReader:
        name = "recover" if recover else "open"
        return await self._client.call(
            name, self._inner.open(ledger, recover=recover, password=password)
        )

    async def info(self, ledger: int) -> LedgerMetadata:
        return await self._inner.info(ledger)

    async def delete(self, ledger: int) -> None:
        await self._client.call("delete", self._inner.delete(ledger))

    def ledgers(self, *, first: int = 0) -> AsyncIterator[int]:
        return self._inner.ledgers(first=first)

    async def bookies(self) -> list[BookieInfo]:
        return await self._inner.bookies()

    async def close(self) -> None:
        pass
