"""Golden bytes of the log's format, version 1, and how it refuses what is not its own."""

import pytest

from raftwood.base.errors import StoreDamaged
from raftwood.disk.segment_log import format as log_format
from raftwood.disk.segment_log.scan import BadFlush, flush_at, headers_after, records_of

LOG_ID = bytes(range(16))
SEED = log_format.seed_of_log(LOG_ID)
SEGMENT = bytes.fromhex(
    "52575345474d4e540100000005000000000102030405060708090a0b0c0d0e0f"
    "8b53bcc0cc076b87000000000000000000000000000000000000000000000000"
)
FLUSH = bytes.fromhex(
    "5257464c5553480159151e84ade8a4d540000000050000008403000004000000"
    "2003000004000000350000000100000003000000000000000000000000000000"
)
RECORD = bytes.fromhex(
    "721224028c4f97b1010000000500000007000000000000000200000000000000"
    "0900000000000000030000000000000068656c6c6f"
)
HEADER = log_format.FlushHeader(
    position=log_format.position_of(5, 64),
    previous_end=log_format.position_of(4, 900),
    synced=log_format.position_of(4, 800),
    body_bytes=53,
    record_count=1,
    oldest_segment=3,
)


def test_the_encoders_make_the_golden_bytes() -> None:
    assert log_format.encode_segment_header(number=5, log_id=LOG_ID) == SEGMENT
    assert log_format.encode_flush_header(HEADER, log_seed=SEED) == FLUSH
    header = log_format.encode_record_header(log_format.KIND_RUN, 0, 7, 2, 9, 3, b"hello")
    assert header + b"hello" == RECORD


def test_the_golden_bytes_are_read() -> None:
    data = SEGMENT + FLUSH + RECORD
    assert log_format.decode_segment_header(data, path="x") == (5, LOG_ID)
    header = flush_at(data, HEADER.position, log_seed=SEED, previous_end=HEADER.previous_end)
    assert header == HEADER
    records = records_of(data, HEADER)
    assert not isinstance(records, BadFlush)
    (record,) = records
    assert (record.group, record.term, record.index, record.count) == (7, 2, 9, 3)
    assert bytes(record.payload) == b"hello"


def test_a_flush_of_another_log_or_place_is_not_taken() -> None:
    data = SEGMENT + FLUSH + RECORD
    other = log_format.seed_of_log(bytes(16))
    assert isinstance(flush_at(data, HEADER.position, log_seed=other, previous_end=None), BadFlush)
    moved = SEGMENT + bytes(8) + FLUSH + RECORD
    place = HEADER.position + 8
    assert isinstance(flush_at(moved, place, log_seed=SEED, previous_end=None), BadFlush)
    assert list(headers_after(moved, segment=5, offset=64, log_seed=SEED)) == []
    assert list(headers_after(data, segment=5, offset=64, log_seed=SEED)) == [HEADER]
    assert isinstance(flush_at(data, HEADER.position, log_seed=SEED, previous_end=1), BadFlush)


def test_a_short_file_is_no_segment() -> None:
    with pytest.raises(StoreDamaged, match="10 bytes"):
        log_format.decode_segment_header(SEGMENT[:10], path="x")
