"""Topics of a real Kafka broker are shared by workers with leases, as logstores are."""

import asyncio
from collections.abc import Callable

import confluent_kafka
import pytest

from raftwood.base.environment import Environment
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.consumer.iterator import Consumer
from raftwood.loghub.consumer.kafka_source import KafkaSource
from raftwood.loghub.consumer.leases import LeaseTimes
from raftwood.loghub.consumer.memory_store import MemoryLeaseStore
from raftwood.loghub.consumer.worker import WorkerConfig
from tests.kits.running import run
from tests.kits.servers.kafka import kafka_broker

PARTITIONS = 4
RECORDS = 400

Seen = list[tuple[str, int]]


def _send(address: str, numbers: range) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "log_level": 0})
    for number in numbers:
        producer.produce("t", b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(30) == 0


async def _consume(
    name: str, address: str, store: MemoryLeaseStore, environment: Environment, seen: Seen
) -> None:
    config = WorkerConfig(instance=name, times=LeaseTimes(timeout_ms=10_000))
    async with (
        KafkaSource(address, "t") as source,
        Consumer(config, store, source=source, environment=environment) as consumer,
    ):
        async for batch in consumer:
            seen += [(name, int(record.value or b"")) for record in batch.records()]


async def _until(is_met: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not is_met():  # noqa: ASYNC110 - workers and a broker bring it about
            await asyncio.sleep(0.05)


@pytest.mark.needs("kafka")
def test_workers_share_a_topic_and_each_record_comes_once() -> None:
    async def main(address: str) -> None:
        store, seen = MemoryLeaseStore(), Seen()
        with real_environment() as environment:
            async with asyncio.TaskGroup() as workers:
                await asyncio.to_thread(_send, address, range(RECORDS // 2))
                one = workers.create_task(_consume("one", address, store, environment, seen))
                await _until(lambda: len(seen) == RECORDS // 2)
                two = workers.create_task(_consume("two", address, store, environment, seen))
                leases = store.leases
                await _until(lambda: len({each.consumer_owner for each in leases.values()}) == 2)
                await asyncio.to_thread(_send, address, range(RECORDS // 2, RECORDS))
                await _until(lambda: len(seen) >= RECORDS)
                one.cancel()
                two.cancel()
        assert sorted(number for _, number in seen) == list(range(RECORDS))
        assert {name for name, number in seen if number >= RECORDS // 2} == {"one", "two"}

    with kafka_broker("t", partitions=PARTITIONS) as address:
        run(main(address))
