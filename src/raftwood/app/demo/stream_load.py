"""Producers of the demo's stream: they send all the time, and keep account of what was acked."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from raftwood.app.demo.stream_check import StreamAccount, contents_of
from raftwood.base.errors import RaftwoodError
from raftwood.loghub.client.deliveries import Delivery
from raftwood.loghub.client.producer import AsyncProducer

_REPORT_S: Final = 0.2
_GROUPS_WAITING: Final = 4


class StreamRates(msgspec.Struct, frozen=True):
    """How sending went during a part of the story."""

    records: int
    records_per_second: float


class StreamLoad:
    """A producer for each group of keys; `pause_s` is what each waits after a group of records."""

    def __init__(
        self,
        account: StreamAccount,
        keys: Sequence[Sequence[str]],
        *,
        group: int,
        on_progress: Callable[["StreamLoad"], None],
    ) -> None:
        self._account = account
        self._keys = keys
        self.group = group
        self.pause_s = 0.0
        self._on_progress = on_progress
        self.acked = self.unknown = 0
        self._is_over = False
        self._last_ack: float | None = None
        self.longest_pause_ms = 0.0
        """Without an ack of any shard."""
        self.begin_part()

    def begin_part(self) -> None:
        """Let `rates` tell of what comes from now on."""
        self._part_began, self._part_acked = time.perf_counter(), self.acked

    def rates(self) -> StreamRates:
        records = self.acked - self._part_acked
        elapsed = max(0.001, time.perf_counter() - self._part_began)
        return StreamRates(records, records / elapsed)

    @asynccontextmanager
    async def running(self, producers: Sequence[AsyncProducer]) -> AsyncIterator[None]:
        """Send during the block; at its end, what is under way is waited for."""
        tasks = [
            asyncio.create_task(self._send_all(producer, keys))
            for producer, keys in zip(producers, self._keys, strict=True)
        ]
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

    async def _send_all(self, producer: AsyncProducer, keys: Sequence[str]) -> None:
        account, turn = self._account, 0
        waiting: deque[list[tuple[str, int, Delivery]]] = deque()
        while not self._is_over:
            sent = []
            for _ in range(self.group):
                turn += 1
                key = keys[turn % len(keys)]
                number = account.next_number(key)
                sent.append((key, number, await producer.send(contents_of(key, number), key=key)))
            waiting.append(sent)
            if len(waiting) >= _GROUPS_WAITING or self.pause_s:
                await self._settle(waiting.popleft())
            await asyncio.sleep(self.pause_s)
        for sent in waiting:
            await self._settle(sent)

    async def _settle(self, sent: Sequence[tuple[str, int, Delivery]]) -> None:
        for key, number, delivery in sent:
            try:
                await delivery
            except RaftwoodError:
                self.unknown += 1
            else:
                self._account.ack(key, number)
                self.acked += 1
        now = time.perf_counter()
        if self._last_ack is not None:
            self.longest_pause_ms = max(self.longest_pause_ms, (now - self._last_ack) * 1000)
        self._last_ack = now

    async def probe(self, producer: AsyncProducer, keys: Sequence[str]) -> float:
        """Send a record of each key from now on; milliseconds until all are acked."""
        began = time.perf_counter()
        sent = []
        for key in keys:
            number = self._account.next_number(key)
            sent.append((key, number, await producer.send(contents_of(key, number), key=key)))
        await self._settle(sent)
        return (time.perf_counter() - began) * 1000
