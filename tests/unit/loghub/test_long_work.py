"""Work that cannot be cut into slices is done beside the loop, where it is not small."""

import asyncio
import zlib
from pathlib import Path

import lz4.block
import pyarrow
import pytest
import zstandard

from raftwood.disk.real_environment import real_environment
from raftwood.loghub.arrow_batches import write_arrow_stream
from raftwood.loghub.errors import BatchTooLarge
from raftwood.loghub.server.content_encoding import unpacked_in_turns
from raftwood.loghub.server.long_work import ON_LOOP_BYTES_MAX
from raftwood.net.listeners import FairScheduler
from tests.kits.loghub.long_work import CountedWork, count_long_work
from tests.kits.loghub.sls import PROTOBUF, put, raw_group, stream
from tests.kits.running import run

ARROW = "application/vnd.apache.arrow.stream"
LARGE = bytes(ON_LOOP_BYTES_MAX + 1)
SMALL = bytes(1_000)


def streamed(body: bytes) -> bytes:
    """Without its size."""
    return zstandard.ZstdCompressor(write_content_size=False).compress(body)


def test_a_real_environment_does_it_in_a_thread() -> None:
    with real_environment() as environment:
        assert environment.compute is asyncio.to_thread


@pytest.mark.parametrize(
    ("packed", "raw", "bytes_max", "count"),
    [
        (zstandard.compress(LARGE), LARGE, len(LARGE), 1),
        (streamed(LARGE), LARGE, len(LARGE), 1),
        (streamed(SMALL), SMALL, len(LARGE), 1),  # how large it becomes nobody knows before
        (streamed(SMALL), SMALL, len(SMALL), 0),
        (zstandard.compress(SMALL), SMALL, len(LARGE), 0),
    ],
)
def test_zstd_above_a_size_is_unpacked_beside_the_loop(
    packed: bytes, raw: bytes, bytes_max: int, count: int
) -> None:
    async def main() -> None:
        work = CountedWork()
        assert (
            await unpacked_in_turns(packed, "zstd", FairScheduler(), work, bytes_max=bytes_max)
            == raw
        )
        assert work.count == count
        with pytest.raises(BatchTooLarge):
            await unpacked_in_turns(packed, "zstd", FairScheduler(), work, bytes_max=len(raw) - 1)

    run(main())


@pytest.mark.parametrize("content_type", [PROTOBUF, ARROW])
@pytest.mark.parametrize(
    ("compression", "count"),
    # One each for the digest of a large body, unpacking it, and packing what came as deflate.
    [("", 2), ("lz4", 1), ("zstd", 1), ("deflate", 1)],
)
def test_a_large_put_is_unpacked_and_packed_beside_the_loop(
    tmp_path: Path, compression: str, count: int, content_type: str
) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            # Arrow is read in a thread, too.
            of_large = count + (content_type == ARROW)
            for value, expected in (("small", 0), ("x" * len(LARGE), of_large)):
                raw = raw_group(value)
                if content_type == ARROW:
                    raw = write_arrow_stream(pyarrow.table({"message": [value]}))
                body = {
                    "": raw,
                    "lz4": lz4.block.compress(raw, store_size=False),
                    "zstd": zstandard.compress(raw),
                    "deflate": zlib.compress(raw),
                }[compression]
                work = count_long_work(served.gateway)
                answer = await put(
                    served,
                    body,
                    raw_bytes=len(raw),
                    compression=compression,
                    content_type=content_type,
                )
                assert (answer.status, answer.body) == (200, b"")
                assert work.count == expected

    run(main())


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_what_would_be_above_the_limit_is_refused_before_it_is_unpacked(
    tmp_path: Path, compression: str
) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            work = count_long_work(served.gateway)
            raw = bytes(64 << 20)
            packed = {
                "lz4": lz4.block.compress(raw, store_size=False),
                "zstd": zstandard.compress(raw),
            }[compression]
            answer = await put(served, packed, raw_bytes=len(raw), compression=compression)
            assert answer.status == 413
            # One that says to be smaller than it is gets no more room than it says.
            answer = await put(served, packed, raw_bytes=len(LARGE), compression=compression)
            assert answer.status == 400
            assert work.count == 1

    run(main())
