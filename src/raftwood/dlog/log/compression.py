"""Compression of entries, with bounds that damaged bytes cannot pass."""

from enum import IntEnum

import lz4.block
import zstandard

from raftwood.base.errors import StoreDamaged
from raftwood.base.files import Buffer


class Compression(IntEnum):
    """How an entry's messages are packed; the number stands in the entry."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


def compress(body: Buffer, kind: Compression) -> Buffer:
    if kind is Compression.NONE:
        return body
    if kind is Compression.LZ4:
        packed: bytes = lz4.block.compress(body, store_size=False)
        return packed
    return zstandard.ZstdCompressor(level=1).compress(body)


def decompress(body: Buffer, kind: Compression, *, raw_bytes: int) -> Buffer:
    """Exactly so many bytes; nothing larger is ever allocated."""
    if kind is Compression.NONE:
        raw = body
    else:
        try:
            raw = _unpack(body, kind, raw_bytes)
        except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError) as error:
            raise StoreDamaged(f"an entry's {kind.name.lower()} cannot be unpacked") from error
    if len(raw) != raw_bytes:
        raise StoreDamaged(f"an entry has {len(raw)} bytes unpacked, not {raw_bytes} as it says")
    return raw


def _unpack(body: Buffer, kind: Compression, raw_bytes: int) -> bytes:
    if kind is Compression.LZ4:
        raw: bytes = lz4.block.decompress(body, uncompressed_size=raw_bytes)
        return raw
    # The frame's own word on its size decides what is allocated, so it is asked first.
    if zstandard.frame_content_size(body) > raw_bytes:
        raise StoreDamaged("an entry's zstd frame is larger than the entry says")
    return zstandard.ZstdDecompressor().decompress(
        body, max_output_size=max(1, raw_bytes), allow_extra_data=False
    )
