"""How the body of a batch is compressed. The codec numbers stand in stored batches and on wires."""

from enum import IntEnum
from typing import Final

import lz4.block
import zstandard

from raftwood.base.files import Buffer

_ZSTD_LEVEL: Final = 1


class Codec(IntEnum):
    """How a body is compressed."""

    NONE = 0
    LZ4 = 1
    """A raw block, without its size."""
    ZSTD = 2


def compress(body: Buffer, codec: Codec) -> Buffer:
    """A body as the codec makes it; itself where there is none."""
    if codec is Codec.NONE:
        return body
    if codec is Codec.LZ4:
        packed: bytes = lz4.block.compress(body, store_size=False)
        return packed
    # One for each call: several threads must not share one.
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body)
