"""Clients of the demo's log shards: they append batches all the time, and keep account.

Every record says whose it is and the how-manieth, and carries a digest of that. So a reader can
tell what is missing, there twice, in another place than it was acked at, or changed.
"""

import asyncio
import struct
import time
from array import array
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from xxhash import xxh3_64_digest

from raftwood.base.errors import DeadlineExceeded, RaftwoodError
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.records import Record

_HEAD: Final = struct.Struct(">IQ")
_DIGESTS: Final = 30
RECORD_BYTES: Final = _HEAD.size + 8 * _DIGESTS


def record_of(writer: int, number: int) -> bytes:
    head = _HEAD.pack(writer, number)
    return head + xxh3_64_digest(head) * _DIGESTS


class LogVerdict(msgspec.Struct, frozen=True):
    """What reading it all back found."""

    found: int
    """Records of the clients, also such as were never acked."""
    acked_found: int
    missing: int
    """Acked, and not there."""
    twice: int
    disordered: int
    """Not where they were acked, or before an earlier one of the same client."""
    wrong: int
    """Nobody wrote that."""

    @property
    def held(self) -> bool:
        return not (self.missing or self.twice or self.disordered or self.wrong)


class LogAccount:
    """One client's records: the LSN at which each was acked, and at which it was read."""

    def __init__(self, writer: int) -> None:
        self.writer = writer
        self.acked = array("Q")
        """By number; 0 where it is not acked, which promises nothing."""
        self.seen = array("Q")
        self.twice = 0

    def begin(self, count: int) -> list[bytes]:
        """The next records to append."""
        first = len(self.acked)
        self.acked.extend([0] * count)
        self.seen.extend([0] * count)
        return [record_of(self.writer, number) for number in range(first, first + count)]

    def ack(self, first: int, lsns: Sequence[int]) -> None:
        self.acked[first : first + len(lsns)] = array("Q", lsns)

    def disordered(self) -> int:
        """Acked records that stand elsewhere, or whose LSN is not above the one before."""
        count = before = 0
        for acked, seen in zip(self.acked, self.seen, strict=True):
            if acked:
                count += acked <= before or seen not in (0, acked)
                before = acked
        return count


class LogCheck:
    """Takes the records of all shards, each once, as a reader gets them."""

    def __init__(self, accounts: Iterable[LogAccount]) -> None:
        self._accounts = {account.writer: account for account in accounts}
        self.found = 0
        self.wrong = 0

    def take(self, records: Iterable[Record]) -> None:
        for record in records:
            self.found += 1
            payload = bytes(record.payload)
            writer, number = _HEAD.unpack_from(payload) if len(payload) == RECORD_BYTES else (0, 0)
            account = self._accounts.get(writer)
            if (
                account is None
                or number >= len(account.seen)
                or payload != record_of(writer, number)
            ):
                self.wrong += 1
            elif account.seen[number]:
                account.twice += 1
            else:
                account.seen[number] = record.lsn

    def verdict(self) -> LogVerdict:
        pairs = [
            (acked, seen)
            for account in self._accounts.values()
            for acked, seen in zip(account.acked, account.seen, strict=True)
            if acked
        ]
        return LogVerdict(
            found=self.found,
            acked_found=sum(seen != 0 for _, seen in pairs),
            missing=sum(seen == 0 for _, seen in pairs),
            twice=sum(account.twice for account in self._accounts.values()),
            disordered=sum(account.disordered() for account in self._accounts.values()),
            wrong=self.wrong,
        )


_ACK_S_MAX = 60.0
_REPORT_S = 0.2


class LogRates(msgspec.Struct, frozen=True):
    """How appends went during a part of the story."""

    records: int
    records_per_second: float
    megabytes_per_second: float
    batch_p50_ms: float
    """From a batch's beginning until all of it is acked."""
    batch_p99_ms: float


class LogLoad:
    """Several clients on each shard; `pause_s` is what each waits after a batch."""

    def __init__(self, *, batch: int, on_progress: Callable[["LogLoad"], None]) -> None:
        self.batch = batch
        self._on_progress = on_progress
        self.pause_s = 0.0
        self.accounts: list[LogAccount] = []
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

    def rates(self) -> LogRates:
        records = self.acked - self._part_acked
        per_second = records / max(0.001, time.perf_counter() - self._part_began)
        times = sorted(self._batch_ms) or [0.0]
        return LogRates(
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
        account = LogAccount(len(self.accounts) + 1)
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
