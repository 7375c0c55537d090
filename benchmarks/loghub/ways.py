"""The ways in which loads produce and consume, and the streams that they use."""

from typing import Final

import msgspec

from benchmarks.peers.kafka_consume import CONSUME, ONE_BY_ONE, topic
from benchmarks.peers.kafka_load import TOPIC

SEND_ARROW: Final = "send-arrow"
"""Arrow batches."""
SEND_MANY: Final = "send-many"
"""Lists of records."""
SEND: Final = "send"
"""One record for each call, and the client makes batches."""
SEND_ONE: Final = "send-one"
"""One record is acked before the next one is sent."""
CONSUME_ARROW: Final = CONSUME
"""Batches that were sent as Arrow, as Arrow."""
CONSUME_GROUPS: Final = "consume-groups"
"""Batches that were sent as records, as Arrow."""
CONSUME_ONE: Final = ONE_BY_ONE
"""An iterator of records that were sent as records."""
SLS_PUT: Final = "sls-put"
"""LogGroups of 500 records with lz4, over HTTP."""
JSON_LINES: Final = "json-lines"
"""500 lines for each request, over HTTP."""

PROJECT: Final = "benchmark"
SIZES: Final = (100, 1000)
PRODUCED: Final = TOPIC
TOPICS: Final = (PRODUCED, *map(topic, SIZES))


def filled(size: int, way: str) -> str:
    """The stream that a way of consuming reads."""
    return f"{topic(size)}-arrow" if way == CONSUME_ARROW else topic(size)


STREAMS: Final = (
    PRODUCED,
    *(filled(size, way) for size in SIZES for way in (CONSUME_ARROW, CONSUME_GROUPS)),
)


class Key(msgspec.Struct, frozen=True):
    """An access key, for loads to read."""

    id: str
    secret: str
