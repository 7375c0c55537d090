"""How much of a partition's binlog stays.

Some bytes always do, for slaves that were away for a while. What is beyond that goes once there is
too much of it, or once it is too old, but not what a connected slave still needs: unless that is
so far behind that a whole copy is less.
"""

from typing import Final

from raftwood.disk.segment_log import SegmentLog
from raftwood.zeppelin.node.binlog_format import hour_of
from raftwood.zeppelin.node.store_settings import StoreSettings

_READ_BYTES: Final = 1 << 20
"""So much of the oldest records is looked at for their age at a time."""


async def purged_before(
    log: SegmentLog, group: int, settings: StoreSettings, *, needed_from: int | None, hour: int
) -> int:
    """Records below this sequence may go; `hour` is now."""
    before = head = log.bounds(group).head
    size = log.size_of(group)
    if size > settings.binlog_bytes_max:
        before = log.index_within(group, settings.binlog_bytes_min)
    elif size > settings.binlog_bytes_min:
        aged = await _aged_before(log, group, oldest_hour=hour - settings.binlog_hours_max)
        if aged > head:
            before = min(aged, log.index_within(group, settings.binlog_bytes_min))
    if needed_from is not None and needed_from < before:
        held = log.index_within(group, settings.binlog_held_bytes_max)
        before = min(before, max(needed_from, held))
    return before


async def _aged_before(log: SegmentLog, group: int, *, oldest_hour: int) -> int:
    """Where the first run begins that is not too old, of those that are looked at."""
    head = log.bounds(group).head
    for run in await log.read(group, head, bytes_max=_READ_BYTES):
        if hour_of(run.payload) >= oldest_hour:
            break
        head = run.first_index + run.count
    return head
