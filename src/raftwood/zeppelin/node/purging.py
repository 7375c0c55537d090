"""How much of a partition's binlog stays.

Some bytes always do, for slaves that were away for a while. What is beyond that goes once there is
too much of it, or once it is too old, but not what a connected slave or a reader still needs:
unless that is so far behind that a whole copy is less.
"""

from typing import Final

from raftwood.base.environment import Clock
from raftwood.disk.segment_log import SegmentLog
from raftwood.zeppelin.node.binlog_format import hour_of
from raftwood.zeppelin.node.binlog_readers import BinlogReaders
from raftwood.zeppelin.node.store_settings import StoreSettings

_HOUR_NS: Final = 3_600_000_000_000
_AGE_INTERVAL_NS: Final = 60_000_000_000
"""Between two looks at how old a binlog is, which read from the disk."""
_READ_BYTES: Final = 1 << 20
"""So much of the oldest records is looked at for their age at a time."""


class Purging:
    """Of one partition's binlog."""

    def __init__(
        self,
        log: SegmentLog,
        group: int,
        settings: StoreSettings,
        clock: Clock,
        readers: BinlogReaders,
    ) -> None:
        self._log = log
        self._group = group
        self._settings = settings
        self._clock = clock
        self._readers = readers
        self._aged_ns = clock.monotonic_ns()

    @property
    def hour(self) -> int:
        """It is now, since 1970."""
        return self._clock.wall_ns() // _HOUR_NS

    async def before(self, *, needed_from: int | None) -> int:
        """Records below this sequence may go; a connected slave needs those from another on."""
        log, group, settings = self._log, self._group, self._settings
        before = log.bounds(group).head
        size = log.size_of(group)
        if size > settings.binlog_bytes_max:
            before = log.index_within(group, settings.binlog_bytes_min)
        elif size > settings.binlog_bytes_min and self._is_age_due():
            before = min(await self._aged(), log.index_within(group, settings.binlog_bytes_min))
        read_from = self._readers.needed_from(self._clock.monotonic_ns())
        needed = [each for each in (needed_from, read_from) if each is not None]
        if needed and min(needed) < before:
            held = log.index_within(group, settings.binlog_held_bytes_max)
            before = min(before, max(min(needed), held))
        return before

    def _is_age_due(self) -> bool:
        now_ns = self._clock.monotonic_ns()
        is_due = now_ns - self._aged_ns >= _AGE_INTERVAL_NS
        if is_due:
            self._aged_ns = now_ns
        return is_due

    async def _aged(self) -> int:
        """Where the first run begins that is not too old, of those that are looked at."""
        head = self._log.bounds(self._group).head
        oldest = self.hour - self._settings.binlog_hours_max
        for run in await self._log.read(self._group, head, bytes_max=_READ_BYTES):
            if hour_of(run.payload) >= oldest:
                break
            head = run.first_index + run.count
        return head
