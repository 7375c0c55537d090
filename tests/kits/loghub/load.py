"""Producers and a reader at work all the time; what they were told is checked at the end."""

import asyncio
import random
import time
from contextlib import suppress
from functools import partial
from typing import Self

from raftwood.base.errors import RaftwoodError
from raftwood.delivery.deliveries import Delivery
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.client.producer import AsyncProducer, Delivered, ProducerSettings
from raftwood.loghub.client.reader import ReaderSettings
from raftwood.loghub.errors import DeliveryUnknown, NotDelivered
from tests.kits.loghub.processes import LOGSTORE, PROJECT
from tests.kits.loghub.simulation.notebook import Content, Notebook, Sent

KEYS = "abcdefghijkl"
_PAUSE_S = 0.02
_TOGETHER = 5
_DELIVERY_MS = 120_000
_CAUGHT_UP_S = 60.0


class HubLoad:
    """Use it as a context manager: it runs in between; then `check` what was told."""

    def __init__(self, client: AsyncLogHubClient, *, producers: int = 2) -> None:
        self.notebook = Notebook(time.monotonic)
        self._client = client
        self._producers = producers
        self._tasks: list[asyncio.Task[None]] = []
        self._is_on = True
        self._tail = self.notebook.tails.setdefault("tail", [])

    async def __aenter__(self) -> Self:
        create = asyncio.get_running_loop().create_task
        self._tasks += [create(self._produce(f"p{each}")) for each in range(self._producers)]
        self._tasks.append(create(self._follow()))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_on = False
        *producing, following = self._tasks
        try:
            if kind is None:
                await asyncio.gather(*producing)
                await self._catch_up(following)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def acked(self) -> int:
        return self.notebook.counts.get("acked", 0)

    async def more(self, count: int) -> None:
        """Until so many more records are stored."""
        wanted = self.acked + count
        deadline = time.monotonic() + _DELIVERY_MS / 1000
        while self.acked < wanted:
            assert time.monotonic() < deadline, f"{self.acked} of {wanted} records are stored"
            await asyncio.sleep(0.01)

    async def _produce(self, name: str) -> None:
        settings = ProducerSettings(delivery_timeout_ms=_DELIVERY_MS, memory_bytes_max=1 << 20)
        producer = self._client.producer(PROJECT, LOGSTORE, settings=settings)
        source, numbers = random.Random(name), dict.fromkeys(KEYS, 0)
        while self._is_on:
            await asyncio.sleep(_PAUSE_S)
            for _ in range(_TOGETHER):
                await self._send(producer, name, source.choice(KEYS), numbers)
        with suppress(RaftwoodError):  # each delivery says so itself
            await producer.flush()
        await producer.close()

    async def _send(
        self, producer: AsyncProducer, name: str, key: str, numbers: dict[str, int]
    ) -> None:
        numbers[key] += 1
        sent = self.notebook.begins(f"{name}/{key}/{numbers[key]}")
        delivery = await producer.send({"message": sent.text}, key=key)
        delivery.when_done(partial(self._done, sent, delivery))

    def _done(self, sent: Sent, delivery: Delivery[Delivered]) -> None:
        try:
            delivered = delivery.result()
        except NotDelivered:
            sent.outcome = "failed"
        except DeliveryUnknown:
            self.notebook.count("unknown")
        else:
            self.notebook.acked(sent, delivered.shard, delivered.position)

    async def _follow(self) -> None:
        settings = ReaderSettings(timeout_ms=_DELIVERY_MS, wait_ms=1_000)
        async with self._client.reader(PROJECT, LOGSTORE, follow=True, settings=settings) as reader:
            async for record in reader:
                self._tail.append(str(record.contents["message"]))

    async def _catch_up(self, following: "asyncio.Task[None]") -> None:
        acked = {sent.text for sent in self.notebook.sent if sent.outcome == "ok"}
        async with asyncio.timeout(_CAUGHT_UP_S):
            while not acked <= set(self._tail):
                assert not following.done(), following
                await asyncio.sleep(0.1)

    async def check(self) -> None:
        """All that can be read at the end, against all that was told."""
        final = {}
        shards = await self._client.shards(PROJECT, LOGSTORE)
        self.notebook.saw_shards(shards)
        for shard in shards:
            first = await self._client.cursor(PROJECT, LOGSTORE, shard=shard.id, at="begin")
            records = []
            async with self._client.reader(PROJECT, LOGSTORE, shard=shard.id) as reader:
                async for batch in reader.batches():
                    records += [
                        (int(batch.position), str(each.contents["message"]))
                        for each in batch.records()
                    ]
            final[shard.id] = Content(shard, first, records)
        self.notebook.check(final)
