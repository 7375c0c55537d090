"""Any bytes as a segment: whole flushes, or a reason why not; nothing else, nothing invented."""

import struct

from xxhash import xxh3_64_intdigest

from raftwood.base.errors import StoreError
from raftwood.disk.segment_log import format as log_format
from raftwood.disk.segment_log.scan import BadFlush, flush_at, headers_after, records_of

LOG_ID = bytes(16)
SEED = log_format.seed_of_log(LOG_ID)
_U64 = struct.Struct("<Q")


def header_target(data: bytes) -> None:
    """The segment's header."""
    try:
        number, log_id = log_format.decode_segment_header(data, path="fuzz")
    except StoreError:
        return
    assert log_format.encode_segment_header(number=number, log_id=log_id)[:40] == data[:40]


def flush_target(data: bytes) -> None:
    """A segment's flushes; half of the inputs get a valid header checksum, to reach further."""
    if len(data) > 128 and data[0] & 1:
        fixed = bytearray(data)
        fixed[64:72] = log_format.FLUSH_MAGIC
        fixed[72:80] = _U64.pack(xxh3_64_intdigest(bytes(fixed[80:120]), SEED))
        data = bytes(fixed)
    position = log_format.position_of(5, 64)
    header = flush_at(data, position, log_seed=SEED, previous_end=None)
    if not isinstance(header, BadFlush):
        assert header.position == position
        assert header.body_bytes <= len(data)
        records_of(data, header)
    for found in headers_after(data, segment=5, offset=64, log_seed=SEED):
        assert found.position >> 32 == 5


def record_target(data: bytes) -> None:
    """A flush's records; half of the inputs get a valid record checksum."""
    if len(data) >= 48 and data[40] & 1:
        (payload_bytes,) = struct.unpack_from("<I", data, 12)
        payload = data[48 : 48 + payload_bytes]
        seed = xxh3_64_intdigest(data[8:48])
        data = _U64.pack(xxh3_64_intdigest(payload, seed)) + data[8:]
    count = data[-1] if data else 0
    header = log_format.FlushHeader(log_format.position_of(0, 0), 0, 0, len(data), count, 0)
    records = records_of(bytes(log_format.FLUSH_HEADER_BYTES) + data, header)
    if not isinstance(records, BadFlush):
        assert len(records) == count
        assert sum(48 + len(record.payload) for record in records) == len(data)


def header_seeds() -> list[bytes]:
    return [log_format.encode_segment_header(number=number, log_id=LOG_ID) for number in (0, 5)]


def record_seeds() -> list[bytes]:
    payloads = (b"", b"x" * 20, bytes(100))
    records = [
        log_format.encode_record_header(kind, 0, 3, 1, 9, 2, payloads[kind % 3])
        + payloads[kind % 3]
        for kind in range(1, 6)
    ]
    return [*records, b"".join(records), b""]


def flush_seeds() -> list[bytes]:
    seeds = []
    for body in record_seeds():
        header = log_format.FlushHeader(log_format.position_of(5, 64), 0, 0, len(body), 1, 1)
        flush = log_format.encode_flush_header(header, log_seed=SEED) + body
        seeds.append(log_format.encode_segment_header(number=5, log_id=LOG_ID) + flush * 2)
    return seeds
