"""Decompressing bodies, within bounds that a stranger's bytes cannot pass."""

from typing import Final

import lz4.block
import zstandard

from raftwood.base.codecs import Codec
from raftwood.base.errors import InvalidInput, InvariantViolated
from raftwood.base.files import Buffer
from raftwood.loghub.errors import BatchTooLarge

RAW_BYTES_MAX: Final = 16 << 20
"""Of one body, decompressed, where nobody says less."""


def decompress(
    body: Buffer, codec: Codec, *, raw_bytes: int, raw_bytes_max: int = RAW_BYTES_MAX
) -> Buffer:
    """The raw body, which has exactly the size that was said; nothing larger is ever allocated."""
    if not 0 <= raw_bytes <= raw_bytes_max:
        raise BatchTooLarge(
            f"the body has {raw_bytes} bytes when decompressed, the limit is {raw_bytes_max}: "
            "put less at once"
        )
    raw = body if codec is Codec.NONE else _unpack(body, codec, raw_bytes)
    if len(raw) != raw_bytes:
        raise InvalidInput(
            f"the body has {len(raw)} bytes when decompressed, not {raw_bytes} as was said: give "
            "its raw size"
        )
    return raw


def _unpack(body: Buffer, codec: Codec, raw_bytes: int) -> bytes:
    try:
        if codec is Codec.LZ4:
            raw: bytes = lz4.block.decompress(body, uncompressed_size=raw_bytes)
        elif codec is Codec.ZSTD:
            raw = _unpack_zstd(body, raw_bytes)
        else:
            raise InvariantViolated(f"codec {codec} has no decompression")
    except (lz4.block.LZ4BlockError, zstandard.ZstdError) as error:
        raise InvalidInput(
            f"the body is no {codec.name.lower()} of {raw_bytes} bytes: compress it as it is "
            "named, and give its raw size"
        ) from error
    return raw


def _unpack_zstd(body: Buffer, raw_bytes: int) -> bytes:
    # The frame's own word on its size decides what is allocated, so it is asked first.
    claimed = zstandard.frame_content_size(body)
    if claimed > raw_bytes:
        raise InvalidInput(
            f"the body says to have {claimed} bytes when decompressed, not {raw_bytes}: give its "
            "raw size"
        )
    # Without a size of its own a frame is given this room; the library takes 0 for "no bound".
    room = max(1, raw_bytes)
    return zstandard.ZstdDecompressor().decompress(
        body, max_output_size=room, allow_extra_data=False
    )
