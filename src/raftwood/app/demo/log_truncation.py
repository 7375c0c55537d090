"""`truncate_half`: about half of a shard is truncated, and its leader frees the room.

The log is cut at snapshots alone, and each store takes its own. So the place is one of the leader's
snapshots; where another one leads meanwhile, it may be one of that one's.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from raftwood.app.demo.log_outcome import Truncation
from raftwood.base.errors import DeadlineExceeded
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.errors import LsnTruncated
from raftwood.logservice.wire import ShardInfo

_WAIT_S: Final = 60.0
_LOOK_S: Final = 0.1


class ReadUntil(Protocol):
    """Reads all that was not read yet, up to and with an LSN."""

    def __call__(self, client: AsyncLogClient, /, *, until: int) -> Awaitable[None]: ...


async def truncate_half(
    client: AsyncLogClient, read: ReadUntil, begun: Truncation | None = None
) -> Truncation:
    """What is truncated is read before; `begun` is what another leader was told."""
    before = await _until(client, lambda info: bool(info.snapshots), "has no snapshot")
    half = before.latest_lsn // 2
    lsn = max((each for each in before.snapshots if each <= half), default=before.snapshots[0])
    # This leader may have freed already what the former one was told to.
    bytes_before = max(before.log_bytes, begun.bytes_before if begun else 0)
    if begun is None or lsn > begun.truncated_lsn:
        await read(client, until=lsn)
        await client.truncate(lsn)
    else:
        lsn = begun.truncated_lsn
    after = await _until(
        client,
        lambda info: info.log_bytes < bytes_before or info.leader != before.leader,
        "has freed nothing",
    )
    first = 0
    try:
        await client.read(lsn)
    except LsnTruncated as error:
        first = error.first
    truncation = Truncation(before.shard, lsn, first, bytes_before, after.log_bytes)
    if after.leader != before.leader:
        return await truncate_half(client, read, truncation)
    return truncation


async def _until(
    client: AsyncLogClient, is_met: Callable[[ShardInfo], bool], otherwise: str
) -> ShardInfo:
    """A shard's figures, once they are as they should be."""
    for _ in range(int(_WAIT_S / _LOOK_S)):
        info = await client.info()
        if is_met(info):
            return info
        await asyncio.sleep(_LOOK_S)
    raise DeadlineExceeded(f"shard {info.shard} {otherwise} after {_WAIT_S:g} s")
