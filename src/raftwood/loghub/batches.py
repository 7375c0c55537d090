"""The stored form of a batch: a head of fixed size, then the body as the producer sent it.

A native reader gets a batch exactly as it stands in the shard's log: nothing between the two reads
or changes a body. `decompress` unpacks a body within bounds that an untrusted body cannot exceed.
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
    """The format of a body after decompression."""

    LOG_GROUP = 1
    """An SLS LogGroup, as protobuf."""
    ARROW = 2
    """A stream of Arrow record batches."""


class Batch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The records that a producer puts in one call."""

    body: Buffer
    format: Format = Format.LOG_GROUP
    codec: Codec = Codec.NONE
    raw_bytes: int
    """The size of the decompressed body."""
    records: int = 0
    """The number of records; 0 if it was not counted."""

    @classmethod
    def packed(
        cls, raw: Buffer, *, records: int, codec: Codec, kind: Format = Format.LOG_GROUP
    ) -> Self:
        """Compresses the body by the codec."""
        body = compression.compress(raw, codec)
        return cls(body=body, format=kind, codec=codec, raw_bytes=len(raw), records=records)


class StoredHead(msgspec.Struct, frozen=True, gc=False):
    """The head of a stored batch: what is readable without the body."""

    format: Format
    codec: Codec
    raw_bytes: int
    records: int
    received_ms: int
    """When a gateway received it, in milliseconds since 1970."""


def encode_batch(batch: Batch, *, received_ms: int) -> tuple[bytes, Buffer]:
    """Returns head and body as two pieces, so that the body is not copied."""
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
    """Decodes the head of a stored batch; the body begins after `HEAD_BYTES`."""
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
"""Default limit of one decompressed body."""


def decompress(
    body: Buffer, codec: Codec, *, raw_bytes: int, raw_bytes_max: int = RAW_BYTES_MAX
) -> Buffer:
    """Decompresses a body as `base.compression` does; `BatchTooLarge` above a bound."""
    if not 0 <= raw_bytes <= raw_bytes_max:
        raise BatchTooLarge(
            f"the body has {raw_bytes} bytes when decompressed, the limit is {raw_bytes_max}: "
            "put less at once"
        )
    return compression.decompress(body, codec, raw_bytes=raw_bytes)
