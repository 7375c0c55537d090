"""Consuming from Kafka through confluent-kafka: a topic is filled once, then read again and again.

By batches: lists of up to 10,000 messages. One by one: a message for each call of `poll`.
"""

import argparse
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)

from benchmarks.harness.load import say, say_result

CONSUME: Final = "consume"
ONE_BY_ONE: Final = "consume-one"
FILLED_BYTES_MIN: Final = 20_000_000
FILLED_BYTES_PER_S: Final = 60_000_000
FLUSH_MOST_S: Final = 60.0
CONSUMED_AT_ONCE: Final = 10_000
WAIT_S: Final = 5.0
SETTINGS: Final = {
    "group.id": "benchmark",
    "enable.auto.commit": False,
    # With the defaults, 100,000 messages and a second, it is idle for most of the time.
    "queued.min.messages": 1_000_000,
    "fetch.queue.backoff.ms": 1,
    "log_level": 0,
}


def topic(size: int) -> str:
    """Holds records of one size."""
    return f"filled-{size}"


def filled_bytes(seconds: float) -> int:
    """What a stream is filled with for a measurement that lasts so long; it is read several times,
    and not so often that beginning anew would count.
    """
    return max(FILLED_BYTES_MIN, int(FILLED_BYTES_PER_S * seconds))


class Reading:
    """One consumer of all partitions; begins anew where it has read all."""

    def __init__(self, consumer: Consumer, name: str, *, partitions: int, total: int) -> None:
        self._consumer, self._total = consumer, total
        self._begin = [TopicPartition(name, each, OFFSET_BEGINNING) for each in range(partitions)]
        self._left = 0
        self.count = 0
        self.latencies: list[float] = []

    def begin_anew(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        consumer.assign(places)

    def run(self, seconds: float, take: Callable[[Consumer, int], int]) -> None:
        """`take` is told how many are left, and says how many it has taken."""
        now = time.perf_counter()
        until = now + seconds
        while now < until:
            if self._left <= 0:
                self.begin_anew(self._consumer, self._begin)
                self._left = self._total
            # A look at the clock for each message would cost as much as the message.
            taken = take(self._consumer, self._left)
            self._left -= taken
            self.count += taken
            began, now = now, time.perf_counter()
            self.latencies.append(now - began)


def take_batch(consumer: Consumer, left: int) -> int:
    # Of more than there are it would wait for the last ones.
    messages = consumer.consume(min(CONSUMED_AT_ONCE, left), WAIT_S)
    return len([value_of(message) for message in messages])


def take_one_by_one(consumer: Consumer, left: int) -> int:
    """Until the next look at the clock."""
    taken = 0
    for _ in range(min(1000, left)):
        message = consumer.poll(WAIT_S)
        if message is None:
            break
        value_of(message)
        taken += 1
    return taken


def value_of(message: Message) -> bytes:
    problem: KafkaError | None = message.error()
    if problem is not None:
        raise SystemExit(f"a message could not be read: {problem}")
    value = message.value()
    assert value is not None
    return value


def measure(given: argparse.Namespace, payload: bytes) -> None:
    name = topic(given.bytes)
    total = filled_bytes(given.seconds) // given.bytes
    consumer = Consumer({"bootstrap.servers": given.addresses, **SETTINGS})
    fill(given, consumer, name, payload, total)
    reading = Reading(consumer, name, partitions=given.shards, total=total)
    take = take_one_by_one if given.way == ONE_BY_ONE else take_batch
    measure_reading(given, reading, take)


def measure_reading(
    given: argparse.Namespace, reading: Reading, take: Callable[[Consumer, int], int]
) -> None:
    reading.run(max(given.warm, 0.001), take)
    say("warm")
    reading.latencies.clear()
    before, cpu, began = reading.count, time.process_time(), time.perf_counter()
    reading.run(given.seconds, take)
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
    say_result(reading.latencies, elapsed_s=elapsed, cpu_s=cpu, count=reading.count - before)


def fill(
    given: argparse.Namespace, consumer: Consumer, name: str, payload: bytes, total: int
) -> None:
    """The topic to consume, unless another load has filled it."""
    there = 0
    for partition in range(given.shards):
        low, high = consumer.get_watermark_offsets(TopicPartition(name, partition), WAIT_S)
        there += high - low
    if there >= total:
        return
    producer = Producer(
        {
            "bootstrap.servers": given.addresses,
            "acks": "all",
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "delivery.report.only.error": True,
            "log_level": 0,
        }
    )
    chunk = [{"value": payload}] * 500
    while there < total:
        if len(producer) + len(chunk) <= 100_000:
            there += producer.produce_batch(name, chunk)
            producer.poll(0)
        else:
            producer.poll(0.001)
    if producer.flush(FLUSH_MOST_S):
        raise SystemExit(f"topic {name} could not be filled in {FLUSH_MOST_S:.0f} s")
