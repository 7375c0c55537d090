"""Finding batches in a log whose positions have gaps."""

from typing import Final

from raftwood.base.errors import OutOfRange
from raftwood.base.position import Position
from raftwood.base.seams import Bounds, Log, StoredBatch
from raftwood.loghub.batches import decode_head

GAP_BYTES: Final = 64 << 10
"""Read at once where there is nothing but gaps."""


async def next_batch(log: Log, start: Position, end: Position) -> StoredBatch | None:
    """The first batch from a position on, below `end`; a read may find nothing but gaps."""
    bytes_max = 1
    while start < end:
        batches, following = await log.read(start, bytes_max=bytes_max)
        if batches:
            return batches[0] if batches[0].position < end else None
        if following <= start:
            return None
        start, bytes_max = following, GAP_BYTES
    return None


async def position_of_time(log: Log, bounds: Bounds, time_ms: int) -> Position:
    """Of the first batch that was received at a time or later: found by halving."""
    low, high = bounds.first, bounds.next
    while low < high:
        middle = Position((low + high) // 2)
        try:
            found = await next_batch(log, middle, high)
        except OutOfRange:
            low = (await log.bounds()).first  # it was truncated meanwhile
            if low <= middle:
                raise
            continue
        if found is None or decode_head(found.data).received_ms >= time_ms:
            high = middle
        else:
            low = Position(found.position + 1)
    return low
