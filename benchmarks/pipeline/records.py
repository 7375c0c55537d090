"""The records that all systems are filled with: a file of rows of 100 bytes, all different."""

import pathlib
from collections.abc import Iterator
from typing import Any, Final

import numpy
import pyarrow
import pyarrow.parquet
from confluent_kafka import Producer

from raftwood.base.compression import Codec
from raftwood.loghub.client.producer import ProducerSettings
from raftwood.loghub.client.sync_client import LogHubClient

RECORD_BYTES: Final = 100
MESSAGE: Final = "message"
BATCH_ROWS: Final = 5_000
"""Of 100 B: what a batch holds that is sent as Arrow."""
LINGER_MS: Final = 5
_KAFKA_CHUNK: Final = 500
_KAFKA_HELD_MAX: Final = 100_000
_FLUSH_S_MAX: Final = 60.0


def write_records(file: pathlib.Path, count: int) -> None:
    """Random text does not compress, so that no format gains by it."""
    letters = numpy.frombuffer(b"0123456789abcdef", dtype=numpy.uint8)
    chosen = numpy.random.default_rng(7).integers(0, len(letters), count * RECORD_BYTES)
    offsets = numpy.arange(0, (count + 1) * RECORD_BYTES, RECORD_BYTES, dtype=numpy.int32)
    messages = pyarrow.StringArray.from_buffers(
        count, pyarrow.py_buffer(offsets), pyarrow.py_buffer(letters[chosen])
    )
    table = pyarrow.table({MESSAGE: messages})
    pyarrow.parquet.write_table(
        table, file, compression="zstd", use_dictionary=False, row_group_size=100_000
    )


def _batches(file: pathlib.Path, rows: int) -> Iterator[Any]:
    yield from pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=rows)


def fill_logstore(
    client: LogHubClient, project: str, logstore: str, file: pathlib.Path, *, is_arrow: bool
) -> None:
    """Batches of Arrow, or of protobuf as SLS has it; not compressed, as in Kafka."""
    settings = ProducerSettings(codec=Codec.NONE, linger_ms=LINGER_MS)
    with client.producer(project, logstore, settings=settings) as producer:
        for batch in _batches(file, BATCH_ROWS):
            if is_arrow:
                producer.send_arrow(batch)
            else:
                producer.send_many([{MESSAGE: each} for each in batch.column(0).to_pylist()])


def fill_kafka(addresses: str, topic: str, file: pathlib.Path) -> None:
    settings = {"acks": "all", "linger.ms": LINGER_MS, "batch.size": 1_000_000, "log_level": 0}
    producer = Producer({"bootstrap.servers": addresses, **settings})
    for batch in _batches(file, _KAFKA_CHUNK):
        while len(producer) + _KAFKA_CHUNK > _KAFKA_HELD_MAX:
            producer.poll(0.01)
        producer.produce_batch(
            topic, [{"value": each.encode()} for each in batch.column(0).to_pylist()]
        )
        producer.poll(0)
    if producer.flush(_FLUSH_S_MAX):
        raise OSError(f"topic {topic} could not be filled in {_FLUSH_S_MAX:.0f} s")
