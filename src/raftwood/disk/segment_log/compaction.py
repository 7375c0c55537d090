"""Frees room: removes the oldest segment when nothing, or little, in it is still needed.

Only ever the oldest one, so that what is left is always an unbroken stretch of the log and a
truncation record can be forgotten with its segment. Were a segment in the middle removed, its
truncation record might be all that hides older records in a segment that stays: they would be back
after a restart (decision 0001). The few live records are copied to the log's end first. A cold
group cannot pin the log: above twice the live data, the oldest segment is copied forward in any
case. Test:
test_segment_log::test_truncated_groups_give_their_room_back_and_a_cold_group_pins_nothing

Two waits make it safe: the copies (and the truncations that freed the rest) are durable before
any flush declares the segment unneeded, and that flush is durable before the file is unlinked.
Without the first, a crash leaves a log that says it can do without the segment and has no copy.
Without the second, it leaves a log that misses a segment that it says it needs.
Planted bug: "a segment removed before its copies are durable"
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
    RECORD,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    FlushHeader,
    encode_record_header,
    offset_of,
    position_of,
    record_is_intact,
    segment_of,
)
from raftwood.disk.segment_log.index import GroupIndex, LiveBytes, RunLocation
from raftwood.disk.segment_log.reader import unreadable
from raftwood.disk.segment_log.recovery import REMEDY
from raftwood.disk.segment_log.scan import (
    BadFlush,
    ScannedRecord,
    flush_at,
    headers_after,
    records_of,
)
from raftwood.disk.segment_log.segments import LogSettings, Segments


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
        """Wakes the compactor: something was truncated, or a segment was filled."""
        self._wanted.set()

    async def run(self) -> None:
        """Runs until cancelled; `StoreDamaged` if a live record cannot be read."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._should_free_oldest():
                try:
                    await self._free_oldest()
                except StoreDamaged:
                    raise
                except (DiskFull, StoreError):
                    break  # the next truncation or filled segment wakes the compactor

    def _should_free_oldest(self) -> bool:
        segments = self._segments
        number = segments.oldest
        if number not in segments.used_bytes or segment_of(self._committer.synced) <= number:
            return False
        # Records are compared with records: were flush headers counted, which copying does not get
        # rid of, a log could be copied for ever.
        # Test: test_log_compaction::test_what_is_all_alive_is_not_copied_for_ever
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
        for records in self._flushes(number, data):
            for record in records:
                await self._copy(record)
            await asyncio.sleep(0)  # let the loop serve others between two flushes
        if self._live.of(number):
            # A flush is bad, but its live records may be whole: a replica that is repaired drops
            # its bad ones. The healthy groups beside it must not suffer (decision 0008). Test:
            # test_log_compaction::
            # test_damage_in_what_was_dropped_does_not_keep_the_rest_of_a_flush_from_being_moved
            for record in list(self._live_records(number, data)):
                await self._copy(record)
        if self._live.of(number):
            raise StoreDamaged(f"{path} is damaged, and has what is still needed; {REMEDY}")

    def _flushes(self, number: int, data: Buffer) -> Iterator[list[ScannedRecord]]:
        """Yields the records of each whole flush."""
        place: int | None = position_of(number, SEGMENT_HEADER_BYTES)
        while place is not None and place < position_of(number, len(data)):
            header = flush_at(data, place, log_seed=self._log_seed, previous_end=None)
            records: list[ScannedRecord] | BadFlush = BadFlush("")
            if isinstance(header, FlushHeader) and header.record_count != MARK_COUNT:
                records = records_of(data, header)
            if isinstance(header, BadFlush) or isinstance(records, BadFlush):
                following = headers_after(
                    data, segment=number, offset=offset_of(place) + 1, log_seed=self._log_seed
                )
                place = next((header.position for header in following), None)
                continue
            yield records
            place = header.end

    def _live_records(self, number: int, data: Buffer) -> Iterator[ScannedRecord]:
        """Yields the live records of a segment, also those outside a whole flush if readable."""
        for group, index in self._groups.items():
            place = index.state_position
            if index.state is not None and place is not None and segment_of(place) == number:
                yield ScannedRecord(place, KIND_STATE, 0, group, 0, 0, 0, index.state)
            place = index.head_position
            if place is not None and segment_of(place) == number:
                yield ScannedRecord(place, KIND_HEAD, 0, group, 0, index.head - 1, 0, b"")
            for location in index.locations():
                record = _run_at(number, data, location)
                if record is not None:
                    yield record

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
        # Asked again after each wait: a record that was truncated meanwhile must not come back.
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


def _run_at(number: int, data: Buffer, location: RunLocation) -> ScannedRecord | None:
    """The run at the place in the index; None if another record is there, or a bad one."""
    position, offset = location.position, offset_of(location.position)
    end = offset + location.record_bytes
    if segment_of(position) != number or end > len(data):
        return None
    if not record_is_intact(data, offset, location.payload_bytes):
        return None
    _, kind, flags, _, _, group, term, index, count = RECORD.unpack_from(data, offset)
    payload = data[offset + RECORD_HEADER_BYTES : end]
    return ScannedRecord(position, kind, flags, group, term, index, count, payload)
