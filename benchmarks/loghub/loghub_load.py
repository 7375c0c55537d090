"""A load of LogHub through its native client; prints what `system` describes.

`ways` says what the ways are. Producing by batches is bounded by the records that are not acked
yet, as for the others; nothing is compressed.
"""

import argparse
import asyncio
import os
import pathlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pyarrow

from benchmarks.harness.load import parser, say, say_result
from benchmarks.loghub.ways import (
    CONSUME_ARROW,
    CONSUME_ONE,
    PRODUCED,
    PROJECT,
    SEND,
    SEND_ARROW,
    SEND_MANY,
    SEND_ONE,
    Key,
    filled,
)
from benchmarks.peers.kafka_consume import CONSUME, filled_bytes
from raftwood.base.compression import Codec
from raftwood.base.environment import Environment
from raftwood.delivery.deliveries import Delivery
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.client.producer import AsyncProducer, Delivered, ProducerSettings
from raftwood.server.event_loop import run

CHUNK = 500
ARROW_BYTES = 1_000_000
"""Of one batch."""
LINGER_MS = 5
RECORD_OVERHEAD_BYTES = 256
MEMORY_BYTES_MIN = 16 << 20
LOOKS_EVERY = 1000
"""Records between two looks at the clock."""


class Progress:
    """Counts what was acked or consumed; latencies of some."""

    def __init__(self) -> None:
        self.consumed = 0
        self.producer: AsyncProducer | None = None
        self.latencies: list[float] = []

    @property
    def count(self) -> int:
        return self.consumed if self.producer is None else self.producer.stored

    def watch(self, delivery: Delivery[Delivered]) -> None:
        began = time.perf_counter()
        delivery.when_done(lambda: self.latencies.append(time.perf_counter() - began))


def producer_settings(given: argparse.Namespace) -> ProducerSettings:
    room = given.in_flight * (given.bytes + RECORD_OVERHEAD_BYTES)
    return ProducerSettings(
        codec=Codec.NONE,
        linger_ms=LINGER_MS if given.way == SEND else 0,
        memory_bytes_max=max(MEMORY_BYTES_MIN, room),
    )


def record_of(size: int) -> dict[str, str | bytes]:
    return {"message": os.urandom(size // 2).hex()}


def arrow_of(size: int) -> Any:
    rows = ARROW_BYTES // size
    return pyarrow.record_batch({"message": [os.urandom(size // 2).hex() for _ in range(rows)]})


def sending(
    producer: AsyncProducer, given: argparse.Namespace, progress: Progress
) -> Callable[[], Awaitable[None]]:
    """Send some, once."""
    record, batch = record_of(given.bytes), arrow_of(given.bytes)
    many = [record] * CHUNK

    async def send_arrow() -> None:
        for delivery in await producer.send_arrow(batch):
            progress.watch(delivery)

    async def send_many() -> None:
        progress.watch((await producer.send_many(many))[-1])

    async def send() -> None:
        for _ in range(CHUNK):
            delivery = await producer.send(record)
        progress.watch(delivery)

    async def send_one() -> None:
        began = time.perf_counter()
        await (await producer.send(record))
        progress.latencies.append(time.perf_counter() - began)

    ways = {SEND_ARROW: send_arrow, SEND_MANY: send_many, SEND: send, SEND_ONE: send_one}
    return ways[given.way]


async def produce(client: AsyncLogHubClient, given: argparse.Namespace, progress: Progress) -> None:
    """For ever."""
    producer = client.producer(PROJECT, PRODUCED, settings=producer_settings(given))
    progress.producer = producer
    send = sending(producer, given, progress)
    try:
        while True:
            await send()
    finally:
        await producer.close(is_waiting=False)


async def fill(client: AsyncLogHubClient, given: argparse.Namespace) -> None:
    """The stream to consume, unless another load has filled it."""
    stream = filled(given.bytes, given.way)
    shards = await client.describe(PROJECT, stream)
    missing = filled_bytes(given.seconds) - sum(shard.appended_bytes for shard in shards)
    if missing <= 0:
        return
    way = SEND_ARROW if given.way == CONSUME_ARROW else SEND_MANY
    given = argparse.Namespace(bytes=given.bytes, in_flight=given.in_flight, way=way)
    async with client.producer(PROJECT, stream, settings=producer_settings(given)) as producer:
        send = sending(producer, given, Progress())
        step = CHUNK if way == SEND_MANY else ARROW_BYTES // given.bytes
        for _ in range(missing // given.bytes // step + 1):
            await send()


async def consume(client: AsyncLogHubClient, given: argparse.Namespace, progress: Progress) -> None:
    """For ever: begins anew where all is read."""
    stream = filled(given.bytes, given.way)
    take = _one_by_one if given.way == CONSUME_ONE else _as_arrow
    while True:
        async with client.reader(PROJECT, stream) as reader:
            began = time.perf_counter()
            async for taken in take(reader):
                now = time.perf_counter()
                progress.latencies.append(now - began)
                began = now
                progress.consumed += taken


async def _as_arrow(reader: Any) -> AsyncIterator[int]:
    async for batch in reader.batches():
        yield batch.to_arrow().num_rows


async def _one_by_one(reader: Any) -> AsyncIterator[int]:
    taken = 0
    async for record in reader:
        assert record.contents
        taken += 1
        if taken == LOOKS_EVERY:
            yield taken
            taken = 0
    yield taken


async def load(environment: Environment, given: argparse.Namespace, key: Key) -> None:
    progress = Progress()
    async with await AsyncLogHubClient.connect(
        environment, given.addresses, access_key=key.id, access_secret=key.secret
    ) as client:
        if given.way.startswith(CONSUME):
            await fill(client, given)
            work = consume(client, given, progress)
        else:
            work = produce(client, given, progress)
        task = asyncio.create_task(work)
        await _watch(task, given.warm)
        say("warm")
        progress.latencies.clear()
        before, cpu, began = progress.count, time.process_time(), time.perf_counter()
        await _watch(task, given.seconds)
        elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
        count = progress.count - before
        say_result(progress.latencies, elapsed_s=elapsed, cpu_s=cpu, count=count)
        task.cancel()
        await asyncio.wait([task])


async def _watch(task: "asyncio.Task[None]", seconds: float) -> None:
    """Let it work for so long; what it fails with is raised."""
    await asyncio.wait([task], timeout=max(seconds, 0.001))
    if task.done():
        task.result()


def main() -> None:
    flags = parser()
    flags.add_argument("--addresses", required=True)
    flags.add_argument("--key", required=True, help="a file with the access key")
    given = flags.parse_args()
    key = msgspec.json.decode(pathlib.Path(given.key).read_bytes(), type=Key)
    with real_environment() as environment:
        run(load(environment, given, key))


if __name__ == "__main__":
    main()
