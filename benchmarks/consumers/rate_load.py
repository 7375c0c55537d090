"""Consuming a logstore as the only worker of a group by leases; prints what `system` describes.

Batches come as they were stored, and each is decoded to Arrow; its checkpoint is saved in memory,
and goes to the lease store every two seconds. Where all is read, the shard is begun anew.
"""

import argparse
import asyncio
import pathlib
import time
import uuid
from collections.abc import Sequence

import msgspec

from benchmarks.harness.load import parser, say, say_result
from benchmarks.loghub.loghub_load import fill
from benchmarks.loghub.ways import CONSUME_ARROW, PROJECT, Key, filled
from raftwood.base.environment import Environment
from raftwood.base.position import parse_position
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.consumer.checkpoints import AsyncCheckpointTracker
from raftwood.loghub.consumer.leases import signature
from raftwood.loghub.consumer.loghub_source import LogHubBatch, LogHubSource
from raftwood.loghub.consumer.processor import AsyncProcessor
from raftwood.loghub.consumer.source import ShardBatch, ShardRead
from raftwood.loghub.consumer.sql_store import SqlLeaseStore
from raftwood.loghub.consumer.worker import Worker, WorkerConfig
from raftwood.server.event_loop import run


class Again(LogHubSource):
    """Begins a shard anew where all of it was read."""

    def __init__(self, client: AsyncLogHubClient, stream: str) -> None:
        super().__init__(client, project=PROJECT, logstore=stream)
        self._ends: dict[str, str] = {}

    async def read(self, shard: str, position: str) -> ShardRead:
        if shard not in self._ends:
            self._ends[shard] = await self.end(shard)
        if parse_position(position) >= parse_position(self._ends[shard]):
            position = await self.begin(shard)
        return await super().read(shard, position)


class Count:
    """Of all shards."""

    def __init__(self) -> None:
        self.records = 0
        self.calls_s: list[float] = []


class Decode(AsyncProcessor):
    """Counts rows."""

    def __init__(self, count: Count) -> None:
        self._count = count

    async def process(self, batches: Sequence[ShardBatch], tracker: AsyncCheckpointTracker) -> None:
        began = time.perf_counter()
        for batch in batches:
            assert isinstance(batch, LogHubBatch)
            self._count.records += batch.to_arrow().num_rows
        await tracker.save_checkpoint()
        self._count.calls_s.append(time.perf_counter() - began)


async def load(environment: Environment, given: argparse.Namespace, key: Key) -> None:
    count = Count()
    stream = filled(given.bytes, CONSUME_ARROW)
    given.way = CONSUME_ARROW
    async with await AsyncLogHubClient.connect(
        environment, given.addresses, access_key=key.id, access_secret=key.secret
    ) as client:
        await fill(client, given)
        store = SqlLeaseStore(
            environment,
            given.store,
            group=str(uuid.uuid4()),
            signature=signature(PROJECT, stream),
        )
        worker = Worker(
            WorkerConfig(instance="one"),
            lambda: Decode(count),
            store,
            source=Again(client, stream),
            environment=environment,
        )
        running = asyncio.create_task(worker.run())
        while len(worker.shards()) < given.shards:
            await asyncio.wait([running], timeout=0.01)
        await asyncio.wait([running], timeout=max(given.warm, 0.001))
        say("warm")
        count.calls_s.clear()
        before, cpu, began = count.records, time.process_time(), time.perf_counter()
        await asyncio.wait([running], timeout=given.seconds)
        elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
        records = count.records - before
        worker.drain()
        await running
        say_result(count.calls_s, elapsed_s=elapsed, cpu_s=cpu, count=records)


def main() -> None:
    flags = parser()
    flags.add_argument("--addresses", required=True)
    flags.add_argument("--key", required=True, help="a file with the access key")
    flags.add_argument("--store", required=True)
    given = flags.parse_args()
    key = msgspec.json.decode(pathlib.Path(given.key).read_bytes(), type=Key)
    with real_environment() as environment:
        run(load(environment, given, key))


if __name__ == "__main__":
    main()
