"""The streams that the loads use, and the key that may use them."""

import msgspec

from benchmarks.peers.kafka_consume import topic
from benchmarks.peers.kafka_load import TOPIC

PROJECT = "benchmark"
SIZES = (100, 1000)
PRODUCED = TOPIC
filled = topic
STREAMS = (PRODUCED, *map(filled, SIZES))


class Key(msgspec.Struct, frozen=True):
    """An access key, for loads to read."""

    id: str
    secret: str
