"""Reading a segment's bytes back: which flushes are whole, and what they say. No I/O.

Tells a torn tail from damage by one rule: every flush names the position below which all was synced
when it was written; bad data below the highest such position was durable once, and is damage.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from raftwood.base.files import Buffer
from raftwood.disk.segment_log.format import (
    FLUSH_HEADER_BYTES,
    FLUSH_MAGIC,
    KIND_DROP,
    KIND_RUN,
    MARK_COUNT,
    RECORD,
    RECORD_HEADER_BYTES,
    FlushHeader,
    decode_flush_header,
    offset_of,
    position_of,
    record_is_intact,
)

_MAGIC: Final = re.compile(re.escape(FLUSH_MAGIC))


class ScannedRecord(msgspec.Struct, frozen=True):
    """One intact record; the payload is a view of the segment's bytes."""

    position: int
    kind: int
    flags: int
    group: int
    term: int
    index: int
    count: int
    payload: Buffer


class BadFlush(msgspec.Struct, frozen=True):
    """Why the bytes at an offset are not a whole flush."""

    reason: str


def flush_at(
    data: Buffer, position: int, *, log_seed: int, previous_end: int | None
) -> FlushHeader | BadFlush:
    """The flush header that stands at a position and continues the flush before it."""
    offset = offset_of(position)
    header = decode_flush_header(data, offset, log_seed=log_seed)
    if header is None:
        return BadFlush("no valid flush header")
    if header.position != position:
        return BadFlush("a flush header that belongs elsewhere")
    if previous_end is not None and header.previous_end != previous_end:
        return BadFlush("the flush before it is missing")
    if offset + FLUSH_HEADER_BYTES + header.body_bytes > len(data):
        return BadFlush("the flush goes on beyond the end of the file")
    return header


def records_of(data: Buffer, header: FlushHeader) -> list[ScannedRecord] | BadFlush:
    """All records of a flush, each verified: a flush counts as a whole or not at all."""
    records: list[ScannedRecord] = []
    if header.record_count == MARK_COUNT:
        return records
    offset = offset_of(header.position) + FLUSH_HEADER_BYTES
    end = offset + header.body_bytes
    base = header.position - offset_of(header.position)
    while offset < end:
        if offset + RECORD_HEADER_BYTES > end:
            return BadFlush(f"a record at offset {offset} is cut off")
        fields = RECORD.unpack_from(data, offset)
        _, kind, flags, _, payload_bytes, group, term, index, count = fields
        payload_end = offset + RECORD_HEADER_BYTES + payload_bytes
        if payload_end > end or not record_is_intact(data, offset, payload_bytes):
            return BadFlush(f"the record at offset {offset} does not match its checksum")
        if not KIND_RUN <= kind <= KIND_DROP:
            return BadFlush(f"the record at offset {offset} is of unknown kind {kind}")
        payload = data[offset + RECORD_HEADER_BYTES : payload_end]
        records.append(
            ScannedRecord(base + offset, kind, flags, group, term, index, count, payload)
        )
        offset = payload_end
    if len(records) != header.record_count:
        return BadFlush(f"{len(records)} records where the header counts {header.record_count}")
    return records


def headers_after(
    data: Buffer, *, segment: int, offset: int, log_seed: int
) -> Iterator[FlushHeader]:
    """Every valid flush header from an offset on, whatever stands between them."""
    for match in _MAGIC.finditer(data, offset):
        header = decode_flush_header(data, match.start(), log_seed=log_seed)
        if header is not None and header.position == position_of(segment, match.start()):
            yield header
