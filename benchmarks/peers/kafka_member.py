"""A member of a consumer group of Kafka: joins and leaves as it is told on standard input.

    python -m benchmarks.peers.kafka_member --addresses=… --topic=… --group=…
    python -m benchmarks.peers.kafka_member --addresses=… --topic=… --feed=100

The second form is no member: it writes a record to each of so many partitions every 50 ms.
"""

import argparse
import sys
import threading
import time
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.consumers.notes import BEGUN, ENDED, READY, ROUND, now_ns, say

RECORD_EVERY_S: Final = 0.05
QUEUED_MAX: Final = 10_000
SETTINGS: Final = {
    # Moves as few partitions as can be, and lets the others be read meanwhile.
    "partition.assignment.strategy": "cooperative-sticky",
    # As long as a lease, and renewed as often; by default it is 45 s.
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 3_000,
    "auto.offset.reset": "latest",
    "log_level": 0,
}


class Member:
    """From a `join` to a `leave`."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": given.addresses, "group.id": given.group, **SETTINGS}
        )
        self._last_ns: dict[int, int] = {}
        """By partition: when its last record was dealt with."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(given.topic,))
        self._thread.start()

    def leave(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self, topic: str) -> None:
        self._consumer.subscribe(
            [topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        while not self._stopping.is_set():
            for message in self._consumer.consume(100, 0.02):
                if message.error() is None:
                    partition = message.partition()
                    assert partition is not None
                    if partition not in self._last_ns:
                        say(BEGUN, str(partition))
                    self._last_ns[partition] = now_ns()
        # To close it tells the group; what it has is revoked on the way.
        self._consumer.close()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        assert consumer is self._consumer
        if partitions:
            say(ROUND)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        assert consumer is self._consumer
        for each in partitions:
            if each.partition in self._last_ns:
                say(ENDED, str(each.partition), ns=self._last_ns.pop(each.partition))


def feed(addresses: str, topic: str, partitions: int) -> None:
    """Until it is killed; a little later where the brokers are behind."""
    producer = Producer({"bootstrap.servers": addresses, "linger.ms": 0, "log_level": 0})
    while True:
        began = time.monotonic()
        for partition in range(partitions):
            while len(producer) > QUEUED_MAX:
                producer.poll(RECORD_EVERY_S)
            producer.produce(topic, b"x" * 100, partition=partition)
        producer.poll(0)
        time.sleep(max(0.0, RECORD_EVERY_S - (time.monotonic() - began)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--addresses", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="")
    parser.add_argument("--feed", type=int, default=0)
    given = parser.parse_args()
    if given.feed:
        feed(given.addresses, given.topic, given.feed)
    member: Member | None = None
    say(READY)
    for line in sys.stdin:
        if line.strip() == "join":
            member = Member(given)
        elif member is not None:
            member.leave()
            member = None
    if member is not None:
        member.leave()


if __name__ == "__main__":
    main()
