"""Logstores as a source: batches as they were stored, splits, and what was freed."""

import asyncio
from pathlib import Path

import pytest

from raftwood.base.position import Position, parse_position
from raftwood.loghub.consumer.iterator import Consumer
from raftwood.loghub.consumer.leases import LeaseTimes
from raftwood.loghub.consumer.loghub_source import LogHubSource, LogHubSourceSettings
from raftwood.loghub.consumer.memory_store import MemoryLeaseStore
from raftwood.loghub.consumer.worker import WorkerConfig
from raftwood.loghub.errors import RecordsFreed, ShardNotFound
from tests.kits.loghub.hub import LOGSTORE, PROJECT, hub
from tests.kits.running import run
from tests.unit.loghub.client.test_reader import send

CONFIG = WorkerConfig(instance="a", times=LeaseTimes(timeout_ms=5_000, poll_ms=20), list_ms=200)


def test_a_logstore_is_consumed_across_a_split(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            source = LogHubSource(client, project=PROJECT, logstore=LOGSTORE)
            store = MemoryLeaseStore()
            seen: list[int] = []
            shards: list[str] = []
            await send(client, 0, 10)
            async with (
                asyncio.timeout(60),
                Consumer(CONFIG, store, source=source, environment=made.environment) as consumer,
            ):
                async for batch in consumer:
                    seen += [int(record.contents["n"]) for record in batch.records()]
                    shards.append(batch.shard_id)
                    if seen == list(range(10)):
                        await client.split_shard(PROJECT, LOGSTORE, shard=0)
                        await send(client, 10, 20)
                    if len(seen) == 20:
                        break
            assert seen == list(range(20))
            assert len(set(shards)) == 2
            assert {each.shard for each in store.leases.values()} >= {"1", "2"}

    run(body())


def test_a_read_that_waits_hears_that_the_shard_was_split(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            await send(client, 0, 1)
            settings = LogHubSourceSettings(wait_ms=30_000)
            source = LogHubSource(client, project=PROJECT, logstore=LOGSTORE, settings=settings)
            read = await source.read("0", await source.begin("0"))
            waiting = asyncio.create_task(_read_to_end(source, read.next))
            assert not (await asyncio.wait([waiting], timeout=0.2))[0]
            await client.split_shard(PROJECT, LOGSTORE, shard=0)
            async with asyncio.timeout(60):
                await waiting

    run(body())


async def _read_to_end(source: LogHubSource, position: str) -> None:
    while not (read := await source.read("0", position)).is_ended:
        assert not read.batches
        position = read.next


def test_what_was_freed_is_an_error_or_is_skipped(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            await send(client, 0, 10)
            source = LogHubSource(client, project=PROJECT, logstore=LOGSTORE)
            begin = await source.begin("0")
            read = await source.read("0", begin)
            assert read.next == await source.end("0")
            assert await source.next_received_ms("0", begin) == read.batches[0].received_ms
            assert await source.next_received_ms("0", read.next) is None
            middle = parse_position(read.batches[4].next_position)
            await client.truncate_shard(PROJECT, LOGSTORE, shard=0, before=Position(middle))
            with pytest.raises(RecordsFreed, match="group reset"):
                await source.read("0", begin)
            settings = LogHubSourceSettings(skips_freed=True)
            skipping = LogHubSource(client, project=PROJECT, logstore=LOGSTORE, settings=settings)
            rest = await skipping.read("0", begin)
            assert [each.records()[0].contents["n"] for each in rest.batches] == list("56789")
            assert skipping.freed == 1

    run(body())


def test_a_shard_that_was_deleted_is_an_error_or_over(tmp_path: Path) -> None:
    async def body() -> None:
        async with hub(tmp_path, shards=1) as made:
            client = made.clients[0]
            source = LogHubSource(client, project=PROJECT, logstore=LOGSTORE)
            settings = LogHubSourceSettings(skips_freed=True)
            skipping = LogHubSource(client, project=PROJECT, logstore=LOGSTORE, settings=settings)
            with pytest.raises(ShardNotFound):
                await source.begin("7")
            with pytest.raises(ShardNotFound):
                await source.read("7", "0")
            read = await skipping.read("7", await skipping.begin("7"))
            assert read.is_ended
            assert skipping.freed == 1

    run(body())
