"""Clients of the demo's log shards: they append batches all the time, and keep account."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from raftwood.app.demo.log_check import RECORD_BYTES, Account
from raftwood.base.errors import DeadlineExceeded, RaftwoodError
from raftwood.logservice.client.log_client import AsyncLogClient

_ACK_S_MAX = 60.0
_REPORT_S = 0.2


class Rates(msgspec.Struct, frozen=True):
    """How appends went during a part of the story."""

    records: int
    records_per_second: float
    megabytes_per_second: float
    batch_p50_ms: float
    """From a batch's beginning until all of it is acked."""
    batch_p99_ms: float


class Load:
    """Several clients on each shard; `pause_s` is what each waits after a batch."""

    def __init__(self, *, batch: int, on_progress: Callable[["Load"], None]) -> None:
        self.batch = batch
        self._on_progress = on_progress
        self.pause_s = 0.0
        self.accounts: list[Account] = []
        self.acked = self.unknown = 0
        self._is_over = False
        self._may_go = asyncio.Event()
        self._may_go.set()
        self._busy = 0
        self._is_idle = asyncio.Event()
        self._waiters: list[tuple[int, float, asyncio.Future[float]]] = []
        self._last_ack: dict[int, float] = {}
        self._longest_pause_ms: dict[int, float] = defaultdict(float)
        self.begin_part()

    def begin_part(self) -> None:
        """Let `rates` tell of what comes from now on."""
        self._part_began, self._part_acked = time.perf_counter(), self.acked
        self._batch_ms: list[float] = []

    def rates(self) -> Rates:
        records = self.acked - self._part_acked
        per_second = records / max(0.001, time.perf_counter() - self._part_began)
        times = sorted(self._batch_ms) or [0.0]
        return Rates(
            records=records,
            records_per_second=per_second,
            megabytes_per_second=per_second * RECORD_BYTES / 1e6,
            batch_p50_ms=times[len(times) // 2],
            batch_p99_ms=times[len(times) * 99 // 100],
        )

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """During the block nothing is appended, and nothing is under way."""
        self._may_go.clear()
        try:
            if self._busy:
                await self._is_idle.wait()
            yield
        finally:
            self._last_ack.clear()
            self._may_go.set()

    @property
    def longest_pause_ms(self) -> float:
        """The longest time that some shard acked nothing."""
        return max(self._longest_pause_ms.values(), default=0.0)

    @asynccontextmanager
    async def running(self, clients: Sequence[AsyncLogClient]) -> AsyncIterator[None]:
        """Append during the block; at its end, what is under way is waited for."""
        tasks = [asyncio.create_task(self._append_all(client)) for client in clients]
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
            self._on_progress(self)

    async def _append_all(self, client: AsyncLogClient) -> None:
        account = Account(len(self.accounts) + 1)
        self.accounts.append(account)
        while not self._is_over:
            await self._may_go.wait()
            first, began = len(account.acked), time.perf_counter()
            records = account.begin(self.batch)
            self._busy += 1
            self._is_idle.clear()
            try:
                lsns = await client.append_many(records)
            except RaftwoodError:
                self.unknown += len(records)
            else:
                account.ack(first, lsns)
                self._note_ack(client.config.shard, len(lsns), began)
            finally:
                self._busy -= 1
                if not self._busy:
                    self._is_idle.set()
            await asyncio.sleep(self.pause_s)

    def _note_ack(self, shard: int, records: int, began: float) -> None:
        now = time.perf_counter()
        self.acked += records
        self._batch_ms.append((now - began) * 1000)
        pause_ms = (now - self._last_ack.get(shard, now)) * 1000
        self._longest_pause_ms[shard] = max(self._longest_pause_ms[shard], pause_ms)
        self._last_ack[shard] = now
        for waited, moment, future in self._waiters:
            if waited == shard and began >= moment and not future.done():
                future.set_result((now - moment) * 1000)

    async def next_ack_ms(self, shard: int) -> float:
        """Milliseconds from now to the first ack of a batch to the shard begun from now on."""
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        waiter = (shard, time.perf_counter(), future)
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(_ACK_S_MAX):
                return await future
        except TimeoutError:
            raise DeadlineExceeded(f"shard {shard} acked nothing in {_ACK_S_MAX:g} s") from None
        finally:
            self._waiters.remove(waiter)
