"""Reading a segment's bytes back: which flushes are whole, and what they say. No I/O.

Tells a torn tail from damage by one rule: every flush names the position below which all was synced
when it was written; bad data below the highest such position was durable once, and is damage.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest as checksum_of

from raftwood.base.files import Buffer
from raftwood.disk.segment_log.format import (
    FLUSH,
    FLUSH_CHECKED,
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

_PIECE_BYTES: Final = 1 << 20
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


Fields = tuple[int, int, int, int, int, int, int, Buffer]
"""Those of a `ScannedRecord`."""


class WholeFlushes(msgspec.Struct):
    """Flushes that follow one another, each verified."""

    end: int
    """Where the last one ends."""
    flush_count: int = 0
    body_bytes: int = 0
    oldest_segment: int = 0
    """As the last one says."""


def whole_flushes(
    data: Buffer,
    place: int,
    *,
    log_seed: int,
    previous_end: int | None,
    take: Callable[[list[Fields]], None],
) -> WholeFlushes:
    """All flushes of a segment from a place on, up to the first that is not whole.

    As `flush_at` and `records_of` for each, in one loop without objects: a start does this for
    every record that there is. What is wrong with the one it stops at, these two tell.
    """
    found = WholeFlushes(place)
    view, size = memoryview(data), len(data)
    offset = offset_of(place)
    base = place - offset
    unpack_flush, unpack_record = FLUSH.unpack_from, RECORD.unpack_from
    checked_from, checked_to = FLUSH_CHECKED.start, FLUSH_CHECKED.stop
    while offset + FLUSH_HEADER_BYTES <= size:
        fields = unpack_flush(view, offset)
        magic, checksum, position, previous, _, body_bytes, record_count, oldest, _ = fields
        at = offset + FLUSH_HEADER_BYTES
        end = at + body_bytes
        if (
            magic != FLUSH_MAGIC
            or position != base + offset
            or record_count == MARK_COUNT
            or end > size
            or (previous_end is not None and previous != previous_end)
            or checksum != checksum_of(view[offset + checked_from : offset + checked_to], log_seed)
        ):
            break
        records: list[Fields] = []
        while at + RECORD_HEADER_BYTES <= end:
            checksum, kind, flags, _, length, group, term, index, count = unpack_record(view, at)
            begin = at + RECORD_HEADER_BYTES
            following = begin + length
            payload = view[begin:following]
            if (
                following > end
                or checksum != checksum_of(payload, checksum_of(view[at + 8 : begin]))
                or not KIND_RUN <= kind <= KIND_DROP
            ):
                break
            records.append((base + at, kind, flags, group, term, index, count, payload))
            at = following
        if at != end or len(records) != record_count:
            break
        take(records)
        offset = end
        found.end = previous_end = base + end
        found.flush_count += 1
        found.body_bytes += body_bytes
        found.oldest_segment = oldest
    return found


def last_header(data: Buffer, *, segment: int, log_seed: int) -> FlushHeader | None:
    """The last valid flush header of a segment, whatever stands before and after it."""
    end = len(data)
    while end > 0:
        # Magics that begin in the piece; it overlaps the next one by less than a magic.
        begin = max(0, end - _PIECE_BYTES)
        piece = bytes(data[begin : end + len(FLUSH_MAGIC) - 1])
        found = piece.rfind(FLUSH_MAGIC)
        while found >= 0:
            offset = begin + found
            header = decode_flush_header(data, offset, log_seed=log_seed)
            if header is not None and header.position == position_of(segment, offset):
                return header
            found = piece.rfind(FLUSH_MAGIC, 0, found + len(FLUSH_MAGIC) - 1)
        end = begin
    return None


def headers_after(
    data: Buffer, *, segment: int, offset: int, log_seed: int
) -> Iterator[FlushHeader]:
    """Every valid flush header from an offset on, whatever stands between them."""
    for match in _MAGIC.finditer(data, offset):
        header = decode_flush_header(data, match.start(), log_seed=log_seed)
        if header is not None and header.position == position_of(segment, match.start()):
            yield header
