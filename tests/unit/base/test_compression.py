"""Bodies are compressed and decompressed within bounds, whatever they say of themselves."""

import lz4.block
import pytest
import zstandard

from raftwood.base.compression import Codec, compress, decompress
from raftwood.base.errors import InvalidInput


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("body", [b"", b"x", b"hello " * 1000])
def test_what_was_compressed_comes_back(codec: Codec, body: bytes) -> None:
    assert decompress(compress(body, codec), codec, raw_bytes=len(body)) == body


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("said", [0, 5, 7, 5000])
def test_a_wrong_raw_size_is_refused(codec: Codec, said: int) -> None:
    with pytest.raises(InvalidInput):
        decompress(compress(b"abcdef", codec), codec, raw_bytes=said)


def test_a_bomb_stops_at_the_size_that_was_said() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(50 << 20))
    with pytest.raises(InvalidInput, match="raw size"):
        decompress(bomb, Codec.ZSTD, raw_bytes=1000)
    writer = zstandard.ZstdCompressor(write_content_size=False)
    with pytest.raises(InvalidInput):
        decompress(writer.compress(bytes(50 << 20)), Codec.ZSTD, raw_bytes=1000)
    with pytest.raises(InvalidInput):
        decompress(lz4.block.compress(bytes(50 << 20), store_size=False), Codec.LZ4, raw_bytes=1000)


def test_a_frame_that_does_not_say_its_size_is_taken() -> None:
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(b"abc" * 100)
    assert decompress(packed, Codec.ZSTD, raw_bytes=300) == b"abc" * 100


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_what_is_not_compressed_at_all_is_refused(codec: Codec) -> None:
    with pytest.raises(InvalidInput):
        decompress(b"\xff\xfe plain text", codec, raw_bytes=14)
