"""Making room: the oldest segment goes when nothing, or little, in it is still needed.

Only ever the oldest one, so that what is left is always an unbroken stretch of the log and a
truncation record can be forgotten with its segment. The few live records are copied to the log's
end first. A cold group cannot pin the log: above twice the live data, the oldest segment is copied
forward whatever it holds.

Two waits make it safe: the copies (and the truncations that freed the rest) are durable before
any flush declares the segment unneeded, and that flush is durable before the file is unlinked.
"""

import asyncio
from collections.abc import Iterator

from raftwood.base import files as seam
from raftwood.base.errors import DiskFull, Overloaded, StoreDamaged, StoreError
from raftwood.base.files import Buffer, Files, perform
from raftwood.disk.segment_log.committer import Committer
from raftwood.disk.segment_log.format import (
    FLAG_MOVED,
    KIND_HEAD,
    KIND_RUN,
    KIND_STATE,
    MARK_COUNT,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    FlushHeader,
    encode_record_header,
    position_of,
    segment_of,
)
from raftwood.disk.segment_log.index import GroupIndex, LiveBytes
from raftwood.disk.segment_log.reading import unreadable
from raftwood.disk.segment_log.recovery import REMEDY
from raftwood.disk.segment_log.scan import BadFlush, ScannedRecord, flush_at, records_of
from raftwood.disk.segment_log.segments import Segments
from raftwood.disk.segment_log.settings import LogSettings


class Compactor:
    """Runs beside the writer on the same loop; works when woken."""

    def __init__(
        self,
        files: Files,
        settings: LogSettings,
        segments: Segments,
        committer: Committer,
        groups: dict[int, GroupIndex],
        live: LiveBytes,
        *,
        log_seed: int,
    ) -> None:
        self._files = files
        self._settings = settings
        self._segments = segments
        self._committer = committer
        self._groups = groups
        self._live = live
        self._log_seed = log_seed
        self._wanted = asyncio.Event()
        self._wanted.set()

    def wake(self) -> None:
        """Something was truncated, or a segment was filled."""
        self._wanted.set()

    async def run(self) -> None:
        """Until cancelled; `StoreDamaged` where a live record cannot be read."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._should_free_oldest():
                try:
                    await self._free_oldest()
                except StoreDamaged:
                    raise
                except (DiskFull, StoreError):
                    break  # truncations, or segments that were filled, will wake us again

    def _should_free_oldest(self) -> bool:
        segments = self._segments
        number = segments.oldest
        if number not in segments.used_bytes or segment_of(self._committer.synced) <= number:
            return False
        # Records are compared with records: were flush headers counted, which copying does not get
        # rid of, a log could be copied for ever.
        live, records = self._live.of(number), segments.record_bytes[number]
        bound = 2 * self._live.total + 2 * self._settings.segment_bytes
        return (
            live == 0
            or live * 100 < records * self._settings.live_percent_min
            or segments.record_bytes.total() > bound
        )

    async def _free_oldest(self) -> None:
        number = self._segments.oldest
        if not self._committer.has_room_to_compact(self._live.of(number)):
            raise self._segments.disk_full()
        if self._live.of(number):
            await self._copy_live(number)
        await self._all_durable()
        self._live.forget(number)
        self._segments.oldest = number + 1
        await self._barrier()
        await self._segments.remove(number)

    async def _all_durable(self) -> None:
        durable = asyncio.Event()
        self._committer.when_durable(durable.set)
        await durable.wait()

    async def _barrier(self) -> None:
        durable = asyncio.Event()
        self._committer.barrier(durable.set)
        await durable.wait()

    async def _copy_live(self, number: int) -> None:
        path = self._segments.path(number)
        used = self._segments.used_bytes[number]
        try:
            (data,) = await perform(self._files, seam.Read(path, 0, used))
        except OSError as error:
            raise unreadable(path, error) from error
        for records in self._flushes(number, path, data):
            for record in records:
                await self._copy(record)
            await asyncio.sleep(0)  # let the loop serve others between two flushes

    def _flushes(self, number: int, path: str, data: Buffer) -> Iterator[list[ScannedRecord]]:
        place = position_of(number, SEGMENT_HEADER_BYTES)
        while place < position_of(number, len(data)):
            header = flush_at(data, place, log_seed=self._log_seed, previous_end=None)
            records: list[ScannedRecord] | BadFlush = BadFlush("")
            if isinstance(header, FlushHeader) and header.record_count != MARK_COUNT:
                records = records_of(data, header)
            if isinstance(header, BadFlush) or isinstance(records, BadFlush):
                raise StoreDamaged(f"{path} has a bad flush at {place & 0xFFFFFFFF}; {REMEDY}")
            yield records
            place = header.end

    def _is_live(self, record: ScannedRecord) -> bool:
        index = self._groups.get(record.group)
        if index is None:
            return False
        if record.kind == KIND_RUN:
            return index.holds(record.index, position=record.position)
        if record.kind == KIND_STATE:
            return index.state_position == record.position
        return record.kind == KIND_HEAD and index.head_position == record.position

    async def _copy(self, record: ScannedRecord) -> None:
        if not self._is_live(record):
            return
        payload = bytes(record.payload)  # a view would keep the whole segment in memory
        record_bytes = RECORD_HEADER_BYTES + len(payload)
        header = encode_record_header(
            record.kind,
            record.flags | FLAG_MOVED,
            record.group,
            record.term,
            record.index,
            record.count,
            payload,
        )
        while self._is_live(record):
            left = self._live.of(segment_of(record.position))
            may_use_reserve = self._committer.has_room_to_compact(left)
            try:
                position = self._committer.take(
                    (header, payload), record_bytes, 1, None, may_use_reserve=may_use_reserve
                )
            except Overloaded:
                await self._all_durable()
            else:
                self._moved(record, position, record_bytes)
                return

    def _moved(self, record: ScannedRecord, position: int, record_bytes: int) -> None:
        index = self._groups[record.group]
        if record.kind == KIND_RUN:
            index.move(record.index, position=position)
        elif record.kind == KIND_STATE:
            index.state_position = position
        else:
            index.head_position = position
        self._live.remove(record.position, record_bytes)
        self._live.add(position, record_bytes)
