"""A load of Kafka from one producer of confluent-kafka; prints what `system` describes.

A record at a time: each of the appends in flight sends its next record when the last one is acked.
Batched: records are handed over as fast as the producer takes them, and only failures are reported
one by one, since a call of Python for each success would be most of the work.
"""

import argparse
import collections
import os
import signal
import time
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from benchmarks.harness.load import parser, say, say_result
from benchmarks.peers import kafka_consume

TOPIC = "benchmark"
PROBE_PAUSE_S = 0.005
PROBES_MOST_S = 40.0
POLL_S = 0.1
CONNECT_MOST_S = 20.0
CHUNK = 500
PARTITIONER = -1
SETTINGS = {"acks": "all", "enable.idempotence": True, "socket.nagle.disable": True, "log_level": 0}
AT_ONCE = {"linger.ms": 0}
BATCHED = {"linger.ms": 5, "batch.size": 1_000_000, "delivery.report.only.error": True}


class Appends:
    """Each has one record in flight, in one partition; too few of them take turns with all."""

    def __init__(self, producer: Producer, payload: bytes, given: argparse.Namespace) -> None:
        self._producer, self._payload, self._shards = producer, payload, given.shards
        self._step = 0 if given.in_flight >= given.shards else 1
        self.is_open = True
        self.latencies: list[float] = []

    def start(self, partition: int) -> None:
        began = time.perf_counter()

        def acked(error: KafkaError | None, _: Message) -> None:
            self.latencies.append(time.perf_counter() - began)
            if error is not None and self.is_open:
                raise SystemExit(f"an append failed: {error}")
            if self.is_open:
                self.start((partition + self._step) % self._shards)

        self._producer.produce(TOPIC, self._payload, partition=partition, on_delivery=acked)

    def run(self, seconds: float) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self._producer.poll(POLL_S)


class Batches:
    """As many records as the bound allows are with the producer; counts those that were acked."""

    def __init__(self, producer: Producer, payload: bytes, given: argparse.Namespace) -> None:
        self._producer, self._bound, self._sent = producer, given.in_flight, 0
        # Its own partitioner fills a batch of one partition before the next one's.
        self._partition = 0 if given.shards == 1 else PARTITIONER
        self._chunk: list[dict[str, Any]] = [{"value": payload}] * CHUNK
        self._waiting: collections.deque[tuple[int, float]] = collections.deque()
        self.latencies: list[float] = []

    @property
    def acked(self) -> int:
        return self._sent - len(self._producer)

    def run(self, seconds: float) -> None:
        until = time.perf_counter() + seconds
        while (now := time.perf_counter()) < until:
            if len(self._producer) + CHUNK <= self._bound:
                self._sent += self._producer.produce_batch(
                    TOPIC, self._chunk, partition=self._partition, on_delivery=_failed
                )
                self._waiting.append((self._sent, now))
                self._producer.poll(0)
            else:
                self._producer.poll(0.001)
            acked = self.acked
            while self._waiting and self._waiting[0][0] <= acked:
                self.latencies.append(now - self._waiting.popleft()[1])


def _failed(error: KafkaError | None, _: Message) -> None:
    raise SystemExit(f"a record of a batch failed: {error}")


def measure_appends(given: argparse.Namespace, payload: bytes) -> None:
    appends = Appends(_producer(given, AT_ONCE), payload, given)
    for number in range(given.in_flight):
        appends.start(number % given.shards)
    appends.run(given.warm)
    say("warm")
    appends.latencies.clear()
    cpu, began = time.process_time(), time.perf_counter()
    appends.run(given.seconds)
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
    appends.is_open = False
    say_result(appends.latencies, elapsed_s=elapsed, cpu_s=cpu)


def measure_batches(given: argparse.Namespace, payload: bytes) -> None:
    batches = Batches(_producer(given, BATCHED), payload, given)
    batches.run(given.warm)
    say("warm")
    batches.latencies.clear()
    before, cpu, began = batches.acked, time.process_time(), time.perf_counter()
    batches.run(given.seconds)
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
    count = batches.acked - before
    say_result(batches.latencies, elapsed_s=elapsed, cpu_s=cpu, count=count)


def measure_failover(given: argparse.Namespace, payload: bytes) -> None:
    """The producer that was under load goes on, with the retries that are its default."""
    producer = _producer(given, AT_ONCE)
    appends = Appends(producer, payload, given)
    for number in range(given.in_flight):
        appends.start(number % given.shards)
    appends.run(given.warm)
    say("warm")
    appends.is_open = False
    os.kill(given.kill, signal.SIGKILL)
    killed = time.perf_counter()
    took_s: list[float] = []

    def acked(error: KafkaError | None, _: Message) -> None:
        if error is None:
            took_s.append(time.perf_counter() - killed)

    while not took_s:
        if time.perf_counter() - killed > PROBES_MOST_S:
            raise SystemExit(f"no write was acked within {PROBES_MOST_S:.0f} s of the kill")
        producer.produce(TOPIC, payload, partition=0, on_delivery=acked)
        producer.poll(PROBE_PAUSE_S)
    say("failover", first_ack_ms=took_s[0] * 1000)


def _producer(given: argparse.Namespace, settings: dict[str, Any]) -> Producer:
    """Connected, and with the producer's id that makes it idempotent: that takes half a second."""
    made = Producer({"bootstrap.servers": given.addresses, **SETTINGS, **settings})
    for partition in range(given.shards):
        made.produce(TOPIC, b"", partition=partition)
    if made.flush(CONNECT_MOST_S):
        raise SystemExit(f"no broker took a record within {CONNECT_MOST_S:.0f} s")
    return made


def main() -> None:
    flags = parser()
    flags.add_argument("--addresses", required=True)
    given = flags.parse_args()
    payload = os.urandom(given.bytes)
    if given.way.startswith(kafka_consume.CONSUME):
        kafka_consume.measure(given, payload)
    elif given.kill:
        measure_failover(given, payload)
    elif given.batched:
        measure_batches(given, payload)
    else:
        measure_appends(given, payload)
    # What is still in flight is of no interest.
    os._exit(0)


if __name__ == "__main__":
    main()
