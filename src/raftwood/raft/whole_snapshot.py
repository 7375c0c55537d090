"""Snapshots of state machines that are small enough to be encoded as a whole."""

from collections.abc import AsyncIterator, Iterator
from typing import Final

from raftwood.raft.state_machine import Stopped

CHUNK_BYTES: Final = 256 << 10


def in_chunks(data: bytes, stopped: Stopped) -> Iterator[bytes]:
    """What `save_snapshot` gives; ends early once the host wants no more."""
    for offset in range(0, len(data), CHUNK_BYTES):
        if stopped():
            return
        yield data[offset : offset + CHUNK_BYTES]


async def gathered(chunks: AsyncIterator[bytes], stopped: Stopped) -> bytes | None:
    """What `recover_from_snapshot` gets, put together; None once the host wants no more."""
    data = bytearray()
    async for chunk in chunks:
        if stopped():
            return None
        data += chunk
    return bytes(data)
