"""Compression of batch bodies. The codec numbers are stored in batches and sent on wires."""

from enum import IntEnum
from typing import Final

import lz4.block
import zstandard

from raftwood.base.errors import InvalidInput
from raftwood.base.files import Buffer

_ZSTD_LEVEL: Final = 1


class Codec(IntEnum):
    """How a body is compressed."""

    NONE = 0
    LZ4 = 1
    """A raw block, without its size."""
    ZSTD = 2


CODECS: Final = {codec.name.lower(): codec for codec in Codec}
"""Codecs by their names in settings."""


def compress(body: Buffer, codec: Codec) -> Buffer:
    """Compresses a body; returns it unchanged for `Codec.NONE`."""
    if codec is Codec.NONE:
        return body
    if codec is Codec.LZ4:
        packed: bytes = lz4.block.compress(body, store_size=False)
        return packed
    # One for each call: several threads must not share one.
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body)


def decompress(body: Buffer, codec: Codec, *, raw_bytes: int) -> Buffer:
    """Returns the raw body, which has exactly `raw_bytes`; never allocates more.

    Raises `InvalidInput` for a body that the codec did not make, or that has another size.
    """
    try:
        raw = _unpack(body, codec, raw_bytes)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError) as error:
        raise InvalidInput(
            f"the body is no {codec.name.lower()} of {raw_bytes} bytes: compress it as it is "
            "named, and give its raw size"
        ) from error
    if len(raw) != raw_bytes:
        raise InvalidInput(
            f"the body has {len(raw)} bytes when decompressed, not {raw_bytes} as was said: give "
            "its raw size"
        )
    return raw


def _unpack(body: Buffer, codec: Codec, raw_bytes: int) -> Buffer:
    if codec is Codec.NONE:
        return body
    if codec is Codec.LZ4:
        raw: bytes = lz4.block.decompress(body, uncompressed_size=raw_bytes)
        return raw
    # The size claimed by the frame decides what is allocated, so it is checked first.
    claimed = zstandard.frame_content_size(body)
    if claimed > raw_bytes:
        raise InvalidInput(
            f"the body says to have {claimed} bytes when decompressed, not {raw_bytes}: give its "
            "raw size"
        )
    # A frame without a size of its own is given this room; the library takes 0 for "no bound".
    room = max(1, raw_bytes)
    return zstandard.ZstdDecompressor().decompress(
        body, max_output_size=room, allow_extra_data=False
    )
