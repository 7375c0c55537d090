"""Consuming from Kafka as the only member of a consumer group, by batches; commits by itself."""

import os
import time
from typing import Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from benchmarks.harness.load import parser
from benchmarks.peers.kafka_consume import (
    SETTINGS,
    Reading,
    fill,
    filled_bytes,
    measure_reading,
    take_batch,
    topic,
)

JOIN_MOST_S: Final = 30.0
SEEK_MOST_S: Final = 10.0


class GroupReading(Reading):
    """Keeps what it is assigned, and goes back to its beginning."""

    def begin_anew(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        for place in places:
            _seek(consumer, TopicPartition(place.topic, place.partition, OFFSET_BEGINNING))


def _seek(consumer: Consumer, place: TopicPartition) -> None:
    """A partition that was just assigned cannot be moved before its offset was looked up."""
    until = time.monotonic() + SEEK_MOST_S
    while True:
        try:
            consumer.seek(place)
            return
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE or time.monotonic() > until:
                raise
        time.sleep(0.05)


def join(consumer: Consumer, name: str, partitions: int) -> None:
    consumer.subscribe([name])
    until = time.monotonic() + JOIN_MOST_S
    while len(consumer.assignment()) < partitions:
        consumer.poll(0.1)
        if time.monotonic() > until:
            raise SystemExit(f"the group has not got {partitions} partitions of {name}")


def main() -> None:
    flags = parser()
    flags.add_argument("--addresses", required=True)
    given = flags.parse_args()
    name, total = topic(given.bytes), filled_bytes(given.seconds) // given.bytes
    settings = {"group.id": f"group-{os.getpid()}", "enable.auto.commit": True}
    consumer = Consumer(
        {
            "bootstrap.servers": given.addresses,
            **SETTINGS,
            **settings,
            "auto.offset.reset": "earliest",
        }
    )
    fill(given, consumer, name, os.urandom(given.bytes // 2).hex().encode(), total)
    join(consumer, name, given.shards)
    reading = GroupReading(consumer, name, partitions=given.shards, total=total)
    measure_reading(given, reading, take_batch)
    consumer.close()


if __name__ == "__main__":
    main()
