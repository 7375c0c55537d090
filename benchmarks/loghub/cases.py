"""What is measured: producing and consuming, by batches and one by one, in each client's ways."""

from typing import Final

import msgspec

from benchmarks.harness.system import Load
from benchmarks.loghub.ways import (
    CONSUME_ARROW,
    CONSUME_GROUPS,
    CONSUME_ONE,
    JSON_LINES,
    SEND,
    SEND_ARROW,
    SEND_MANY,
    SEND_ONE,
    SIZES,
    SLS_PUT,
)

SHARDS: Final = 4
BATCHED_RECORDS: Final = 100_000
"""Records that a client may hold before they are acked: what librdkafka holds by default."""
OURS: Final = "loghub"
"""The rows that are compared with the peers'."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of load; `ways` are ours, by the name of the row that they make."""

    name: str
    payload_bytes: int
    in_flight: int
    ways: dict[str, str]

    def load(self, way: str, *, warm_s: float, seconds: float) -> Load:
        return Load(
            in_flight=self.in_flight,
            payload_bytes=self.payload_bytes,
            warm_s=warm_s,
            seconds=seconds,
            shards=SHARDS,
            is_batched=self.in_flight > 1,
            way=way,
        )


def _size(payload_bytes: int) -> str:
    return {100: "100 B", 1000: "1 kB"}[payload_bytes]


def produce_batches(size: int) -> Case:
    return Case(
        name=f"produce {_size(size)} by batches",
        payload_bytes=size,
        in_flight=BATCHED_RECORDS,
        ways={
            OURS: SEND_ARROW,
            f"{OURS}, send_many": SEND_MANY,
            f"{OURS}, send with linger": SEND,
        },
    )


def produce_one(size: int) -> Case:
    return Case(
        name=f"produce {_size(size)} one by one",
        payload_bytes=size,
        in_flight=1,
        ways={OURS: SEND_ONE},
    )


def consume_batches(size: int) -> Case:
    return Case(
        name=f"consume {_size(size)} by batches",
        payload_bytes=size,
        in_flight=BATCHED_RECORDS,
        ways={OURS: CONSUME_ARROW, f"{OURS}, sent as records": CONSUME_GROUPS},
    )


def consume_one(size: int) -> Case:
    return Case(
        name=f"consume {_size(size)} one by one",
        payload_bytes=size,
        in_flight=BATCHED_RECORDS,
        ways={OURS: CONSUME_ONE},
    )


def produce_http(size: int) -> Case:
    """For which there is no peer."""
    return Case(
        name=f"produce {_size(size)} over HTTP",
        payload_bytes=size,
        in_flight=BATCHED_RECORDS,
        ways={f"{OURS}, SLS puts with lz4": SLS_PUT, f"{OURS}, JSON lines": JSON_LINES},
    )


CASES: Final = tuple(
    make(size)
    for size in SIZES
    for make in (produce_one, produce_batches, consume_batches, consume_one, produce_http)
)
