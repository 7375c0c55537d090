"""Topics of Kafka are consumed by leases as logstores are; the broker is librdkafka's own mock."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest

from raftwood.base.errors import Unavailable
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.consumer.iterator import Consumer
from raftwood.loghub.consumer.kafka_source import KafkaSource, KafkaSourceSettings
from raftwood.loghub.consumer.leases import LeaseTimes
from raftwood.loghub.consumer.memory_store import MemoryLeaseStore
from raftwood.loghub.consumer.worker import WorkerConfig
from tests.kits.running import run

FAST = KafkaSourceSettings(wait_ms=100)


@contextmanager
def broker() -> Iterator[tuple[str, confluent_kafka.Producer]]:
    producer = confluent_kafka.Producer(
        {"test.mock.num.brokers": 1, "bootstrap.servers": "unused:1", "log_level": 0}
    )
    broker = next(iter(producer.list_topics(timeout=10).brokers.values()))
    yield f"{broker.host}:{broker.port}", producer


def put(producer: confluent_kafka.Producer, count: int) -> set[bytes]:
    values = {b"%d" % number for number in range(count)}
    for value in values:
        producer.produce("t", value, key=value)
    assert producer.flush(10) == 0
    return values


def test_a_topic_is_consumed_by_leases() -> None:
    async def main() -> None:
        config = WorkerConfig(instance="a", times=LeaseTimes(timeout_ms=2_000))
        with broker() as (servers, producer), real_environment() as environment:
            values = put(producer, 100)
            store = MemoryLeaseStore()
            seen: list[bytes | None] = []
            async with (
                KafkaSource(servers, "t", settings=FAST) as source,
                Consumer(config, store, source=source, environment=environment) as consumer,
            ):
                assert len(await source.list_shards()) > 1
                async with asyncio.timeout(60):
                    async for batch in consumer:
                        seen += [record.value for record in batch.records()]
                        if len(seen) == len(values):
                            break
            assert set(seen) == values
            assert all(lease.checkpoint is not None for lease in store.leases.values())

    run(main())


def test_a_partition_that_moved_away_is_not_read_ahead_any_more() -> None:
    async def main() -> None:
        with broker() as (servers, producer):
            put(producer, 50)
            async with KafkaSource(servers, "t", settings=FAST) as source:
                [shard, *_] = [each.id for each in await source.list_shards()]
                begin = await source.begin(shard)
                first = await source.read(shard, begin)
                connections = _connections()
                given_up = asyncio.create_task(source.read(shard, first.next))
                await asyncio.sleep(0)
                given_up.cancel()
                source.leave(shard)
                async with asyncio.timeout(60):
                    while _connections() >= connections:  # noqa: ASYNC110 - a thread closes it
                        await asyncio.sleep(0.02)
                # It may come back.
                again = await source.read(shard, begin)
                assert again.batches[0].records()[0] == first.batches[0].records()[0]

    run(main())


def _connections() -> int:
    """Threads of librdkafka, some for each connection."""
    names = [Path(f"/proc/self/task/{each}/comm") for each in os.listdir("/proc/self/task")]
    return sum(name.read_text().startswith("rdk:") for name in names if name.exists())


def test_a_read_that_was_given_up_loses_nothing() -> None:
    async def main() -> None:
        with broker() as (servers, producer):
            values = put(producer, 50)
            found = set()
            async with KafkaSource(servers, "t", settings=FAST) as source:
                for shard in await source.list_shards():
                    position = await source.begin(shard.id)
                    end = await source.end(shard.id)
                    while position != end:
                        reading = asyncio.create_task(source.read(shard.id, position))
                        await asyncio.sleep(0)
                        reading.cancel()
                        await asyncio.gather(reading, return_exceptions=True)
                        read = await source.read(shard.id, position)
                        for batch in read.batches:
                            found |= {record.value for record in batch.records()}
                        position = read.next
            assert found == values

    run(main())


def test_a_broker_that_is_away_is_an_error_to_try_again() -> None:
    async def main() -> None:
        async with KafkaSource("127.0.0.1:1", "t", options={"log_level": 0}) as source:
            with pytest.raises(Unavailable, match="Kafka topic t"):
                await source.list_shards()

    import raftwood.loghub.consumer.kafka_source as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TIMEOUT_S", 0.3)
        run(main())
