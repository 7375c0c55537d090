"""The stored form of a batch: a head of fixed size, then the body as the producer sent it.

What stands in a shard's log is what a native reader gets: nothing between the two looks into a
body, or changes it. `decompress` unpacks a body within bounds that a stranger's bytes cannot pass.
"""

import struct
from enum import IntEnum
from typing import Final, Self

import msgspec

from raftwood.base import compression
from raftwood.base.compression import Codec
from raftwood.base.errors import StoreDamaged, UnsupportedVersion
from raftwood.base.files import Buffer
from raftwood.base.versions import unsupported
from raftwood.loghub.errors import BatchTooLarge

VERSION: Final = 1
_MAGIC: Final = 0x4C  # L
_HEAD: Final = struct.Struct("<BBBBIIQ")  # magic, version, format, codec, raw bytes, records, ms
HEAD_BYTES: Final = _HEAD.size


class Format(IntEnum):
    """What a body is, once it is decompressed."""

    LOG_GROUP = 1
    """An SLS LogGroup, as protobuf."""
    ARROW = 2
    """A stream of Arrow record batches."""


class Batch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a producer puts at once."""

    body: Buffer
    format: Format = Format.LOG_GROUP
    codec: Codec = Codec.NONE
    raw_bytes: int
    """Of the body, decompressed."""
    records: int = 0
    """How many; 0 where nobody counted."""

    @classmethod
    def packed(
        cls, raw: Buffer, *, records: int, codec: Codec, kind: Format = Format.LOG_GROUP
    ) -> Self:
        """Compressed by the codec."""
        body = compression.compress(raw, codec)
        return cls(body=body, format=kind, codec=codec, raw_bytes=len(raw), records=records)


class StoredHead(msgspec.Struct, frozen=True, gc=False):
    """What is known of a stored batch without looking into it."""

    format: Format
    codec: Codec
    raw_bytes: int
    records: int
    received_ms: int
    """When a gateway took it, since 1970."""


def encode_batch(batch: Batch, *, received_ms: int) -> tuple[bytes, Buffer]:
    """In pieces, for a body need not be copied."""
    head = _HEAD.pack(
        _MAGIC,
        VERSION,
        batch.format,
        batch.codec,
        batch.raw_bytes,
        batch.records,
        received_ms,
    )
    return head, batch.body


def decode_head(data: Buffer) -> StoredHead:
    """The head of what stands in a log; the body begins after `HEAD_BYTES`."""
    if len(data) < HEAD_BYTES or data[0] != _MAGIC:
        raise StoreDamaged("a batch in a shard's log cannot be read: it was not put by a gateway")
    if data[1] != VERSION:
        raise unsupported("a batch", data[1], VERSION)
    _, _, kind, codec, raw_bytes, records, received_ms = _HEAD.unpack_from(data)
    try:
        return StoredHead(Format(kind), Codec(codec), raw_bytes, records, received_ms)
    except ValueError as error:
        raise UnsupportedVersion(
            f"a batch has format {kind} and codec {codec}, unknown to this program: use a newer one"
        ) from error


RAW_BYTES_MAX: Final = 16 << 20
"""Of one body, decompressed, where nobody says less."""


def decompress(
    body: Buffer, codec: Codec, *, raw_bytes: int, raw_bytes_max: int = RAW_BYTES_MAX
) -> Buffer:
    """As `base.compression` does it; `BatchTooLarge` above a bound."""
    if not 0 <= raw_bytes <= raw_bytes_max:
        raise BatchTooLarge(
            f"the body has {raw_bytes} bytes when decompressed, the limit is {raw_bytes_max}: "
            "put less at once"
        )
    return compression.decompress(body, codec, raw_bytes=raw_bytes)
