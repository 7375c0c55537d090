"""Bytes of the segment log: segment header, flush header, record header. No I/O.

    segment   [segment header][flush][flush]…[zeros or garbage after the last flush]
    flush     [flush header][record][record]…            one writev, one sync, recovered whole
    record    [record header][payload]

Every header carries a magic or a kind, and a checksum; little-endian throughout. A place in the log
is one number, its *position*: segment number in the upper 32 bits, offset in the lower.

Checksums are XXH3-64. A record's covers its header and its payload, chained through the seed so
that a payload is never copied to be hashed. A flush header's is seeded with the log's id: bytes of
another log that ended up in a payload or on a recycled block are never taken for ours.
Tests: test_log_format::test_a_flush_of_another_log_or_place_is_not_taken,
test_segment_log::test_every_flipped_bit_is_noticed_or_harmless
"""

from struct import Struct
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest as checksum_of

from raftwood.base.errors import StoreDamaged
from raftwood.base.files import Buffer
from raftwood.base.versions import unsupported

VERSION: Final = 1

SEGMENT_MAGIC: Final = b"RWSEGMNT"
_SEGMENT: Final = Struct("<8sII16sQ24x")  # magic, version, number, log id, checksum
_SEGMENT_CHECKED: Final = 32
SEGMENT_HEADER_BYTES: Final = 64

FLUSH_MAGIC: Final = b"RWFLUSH\x01"
FLUSH: Final = Struct("<8sQQQQIIII8x")
"""magic, checksum, then what `FlushHeader` has, in order."""
FLUSH_HEADER_BYTES: Final = 64
_FLUSH_BODY: Final = Struct("<QQQIIII")
FLUSH_CHECKED: Final = slice(16, 16 + _FLUSH_BODY.size)
"""The part of a flush header that its checksum covers."""

FLAG_HORIZON: Final = 1
"""A flush's flag: the log had a HORIZON file when it was written, so a log without one lost it.

Release 0.1.0 wrote zeros in the place of the flags, and passes over what stands there.
"""

MARK_COUNT: Final = 0xFFFFFFFF
"""In place of a record count: a mark, which only says what is synced. Nothing follows it."""

RECORD: Final = Struct("<QBBHIQQQI4x")
"""checksum, kind, flags, reserved, payload bytes, group, term, index, count."""
RECORD_BODY: Final = Struct("<BBHIQQQI4x")
RECORD_HEADER_BYTES: Final = RECORD.size

KIND_RUN: Final = 1
"""Consecutive entries of one group and term: first index, count, the entries' bytes."""
KIND_STATE: Final = 2
"""A group's small state; the latest one counts."""
KIND_HEAD: Final = 3
"""A group's entries up to and with `index` are gone; the next may follow at index + 1."""
KIND_TAIL: Final = 4
"""A group's entries from `index` on are gone."""
KIND_DROP: Final = 5
"""A group and all it had are gone."""

FLAG_MOVED: Final = 1
"""A copy of an older record, written so that the older one's segment can be removed."""

_U64: Final = Struct("<Q")


class FlushHeader(msgspec.Struct, frozen=True):
    """The place of a flush, its contents, and how far the log was durable when it was written."""

    position: int
    """Its own place: a flush found elsewhere is not one.

    Payloads are the callers' bytes. One may hold a copy of a segment, and a search for the next
    header must not find a flush in it.
    """
    previous_end: int
    """Where the flush before it ends, so that a missing one is noticed.

    Two flushes may be under way when the power fails, and only the later one reach the disk. If it
    is the first of a segment, nothing but this number tells that one is missing before it.
    """
    synced: int
    """Everything below this was durable already: bad data there is damage, not a torn tail.

    The two look alike on disk, and ask for the opposite. A torn tail was never acked and is cut
    off; to cut off damage would lose what was acked, in silence.
    """
    body_bytes: int
    record_count: int
    oldest_segment: int
    """Segments below this number are no longer needed and may be missing."""
    flags: int = 0

    @property
    def end(self) -> int:
        return self.position + FLUSH_HEADER_BYTES + self.body_bytes


def position_of(segment: int, offset: int) -> int:
    return segment << 32 | offset


def segment_of(position: int) -> int:
    return position >> 32


def offset_of(position: int) -> int:
    return position & 0xFFFFFFFF


def encode_segment_header(*, number: int, log_id: bytes) -> bytes:
    header = _SEGMENT.pack(SEGMENT_MAGIC, VERSION, number, log_id, 0)[:_SEGMENT_CHECKED]
    return header + _U64.pack(checksum_of(header)) + bytes(24)


def decode_segment_header(data: Buffer, *, path: str) -> tuple[int, bytes]:
    """(number, log id); `path` is for the error's text."""
    if len(data) < SEGMENT_HEADER_BYTES:
        raise StoreDamaged(f"{path} has {len(data)} bytes, fewer than a segment's header")
    magic, version, number, log_id, checksum = _SEGMENT.unpack_from(data)
    if magic != SEGMENT_MAGIC:
        raise StoreDamaged(f"{path} does not begin as a segment of a log does")
    if checksum != checksum_of(bytes(data[:_SEGMENT_CHECKED])):
        raise StoreDamaged(f"{path}: the segment's header does not match its checksum")
    if version != VERSION:
        raise unsupported(path, version, VERSION)
    return number, log_id


def encode_flush_header(header: FlushHeader, *, log_seed: int) -> bytes:
    body = _FLUSH_BODY.pack(
        header.position,
        header.previous_end,
        header.synced,
        header.body_bytes,
        header.record_count,
        header.oldest_segment,
        header.flags,
    )
    return FLUSH_MAGIC + _U64.pack(checksum_of(body, log_seed)) + body + bytes(8)


def decode_flush_header(data: Buffer, offset: int, *, log_seed: int) -> FlushHeader | None:
    """Decodes the flush header at the offset; None if there is none, or a bad one."""
    if offset + FLUSH_HEADER_BYTES > len(data):
        return None
    magic, checksum, *fields = FLUSH.unpack_from(data, offset)
    if magic != FLUSH_MAGIC:
        return None
    body = data[offset + 16 : offset + 16 + _FLUSH_BODY.size]
    if checksum != checksum_of(body, log_seed):
        return None
    return FlushHeader(*fields)


def seed_of_log(log_id: bytes) -> int:
    """Returns the seed of all flush checksums of one log."""
    return checksum_of(log_id)


def encode_record_header(
    kind: int, flags: int, group: int, term: int, index: int, count: int, payload: Buffer
) -> bytes:
    """Positional throughout: this runs once per record."""
    body = RECORD_BODY.pack(kind, flags, 0, len(payload), group, term, index, count)
    return _U64.pack(checksum_of(payload, checksum_of(body))) + body


def record_is_intact(data: Buffer, offset: int, payload_bytes: int) -> bool:
    """Whether the record at the offset, wholly inside `data`, matches its checksum."""
    payload_offset = offset + RECORD_HEADER_BYTES
    (checksum,) = _U64.unpack_from(data, offset)
    seed = checksum_of(data[offset + 8 : payload_offset])
    payload = data[payload_offset : payload_offset + payload_bytes]
    return bool(checksum == checksum_of(payload, seed))
