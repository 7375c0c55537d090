"""Clients of the demo cluster: they write unique keys, read them back, and keep account.

A write that was carried out twice shows in the metastore's version, which counts the transactions
that changed something: it must be the number of keys.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
from xxhash import xxh3_64_hexdigest

from raftwood.base.errors import DeadlineExceeded, RaftwoodError
from raftwood.base.seams import MetaStore, SetKey

PREFIX = "demo/"
_READ_EVERY = 10
_PAGE = 10_000
_ACK_S_MAX = 60.0
_REPORT_S = 0.25


class Verdict(msgspec.Struct, frozen=True):
    """What the last look found."""

    keys_found: int
    missing: int
    """Acked, and not there."""
    wrong: int
    """There with another value."""
    twice: int
    """Carried out more than once."""


class Load:
    """Many writers on one store; `acked` counts what was promised."""

    def __init__(self, store: MetaStore, on_progress: Callable[[int], None]) -> None:
        """`on_progress` hears from time to time how many writes were acked so far."""
        self._store = store
        self._on_progress = on_progress
        self._acked: list[str] = []
        self._unknown: list[str] = []
        self._began = 0
        self._is_over = False
        self._last_ack = time.perf_counter()
        self._first_ack_after: list[tuple[float, asyncio.Future[float]]] = []
        self.reads = 0
        self.stale_reads = 0
        self.longest_pause_ms = self.recent_pause_ms = 0.0

    @property
    def acked(self) -> int:
        return len(self._acked)

    @property
    def unknown(self) -> int:
        """Writes that ended with an error, so that nothing was promised."""
        return len(self._unknown)

    @asynccontextmanager
    async def running(self, writers: int) -> AsyncIterator[None]:
        """Write during the block; at its end, what is under way is waited for."""
        tasks = [asyncio.create_task(self._write()) for _ in range(writers)]
        tasks.append(asyncio.create_task(self._report()))
        try:
            yield
            self._is_over = True
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _report(self) -> None:
        while not self._is_over:
            await asyncio.sleep(_REPORT_S)
            self._on_progress(self.acked)

    async def _write(self) -> None:
        while not self._is_over:
            self._began += 1
            number, began = self._began, time.perf_counter()
            key = f"{PREFIX}{number:09d}"
            try:
                await self._store.transact((), (SetKey(key, _value(key)),))
            except RaftwoodError:
                self._unknown.append(key)
                continue
            self._note_ack(key, began)
            if number % _READ_EVERY == 0:
                await self._read(random.choice(self._acked))

    def _note_ack(self, key: str, began: float) -> None:
        now = time.perf_counter()
        pause_ms = (now - self._last_ack) * 1000
        self.recent_pause_ms = max(self.recent_pause_ms, pause_ms)
        self.longest_pause_ms = max(self.longest_pause_ms, pause_ms)
        self._last_ack = now
        self._acked.append(key)
        for moment, future in self._first_ack_after:
            if began >= moment and not future.done():
                future.set_result((now - moment) * 1000)

    async def _read(self, key: str) -> None:
        try:
            found = await self._store.get(key)
        except RaftwoodError:
            return  # no answer is no wrong answer
        self.reads += 1
        self.stale_reads += found is None or found.value != _value(key)

    def watch_pauses(self) -> None:
        """Let `recent_pause_ms` tell of pauses from now on."""
        self.recent_pause_ms = 0.0

    async def next_ack_ms(self) -> float:
        """Milliseconds from now to the first ack of a write that is begun from now on."""
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        waiter = (time.perf_counter(), future)
        self._first_ack_after.append(waiter)
        try:
            async with asyncio.timeout(_ACK_S_MAX):
                return await future
        except TimeoutError:
            raise DeadlineExceeded(f"no write was acked in {_ACK_S_MAX:g} s") from None
        finally:
            self._first_ack_after.remove(waiter)

    async def verify(self) -> Verdict:
        """Read everything back, after the end of all writes."""
        found: dict[str, bytes] = {}
        start = PREFIX
        while True:
            part = await self._store.range(prefix=PREFIX, start=start, limit=_PAGE)
            found |= {entry.key: entry.value for entry in part.entries}
            if part.next_start is None:
                break
            start = part.next_start
        status = await self._store.status()
        return Verdict(
            keys_found=len(found),
            missing=sum(key not in found for key in self._acked),
            wrong=sum(value != _value(key) for key, value in found.items()),
            twice=status.version - len(found),
        )


def _value(key: str) -> bytes:
    return xxh3_64_hexdigest(key.encode()).encode()
