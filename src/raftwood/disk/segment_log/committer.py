"""Group commit: records gather in the open flush while earlier flushes are on their way to disk.

Two flushes are in flight at the most: while one is being synced, the loop answers the callers of
the one before and fills the one after. A flush that fails ends the process, because the contents of
the disk are unknown from then on. After a failed sync the kernel may take its pages for written, so
a second sync would succeed and prove nothing; a short write means the same (decision 0004). What
was acked was synced before, and recovery finds it. Tests: tests/simulation/disk/test_failed_sync

A flush whose callers do not ask when it is durable is written and not synced: the next sync covers
it. Tests: test_log_written

A flush is the records that one write and one sync carry, kept while they may still be read. The
buffers that a caller handed in are written as they are and served to readers as they are; nothing
is copied but small ones, which are joined so that the kernel gets one piece.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Final

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.errors import Overloaded
from raftwood.base.files import Buffer, Completion
from raftwood.base.futures import fail
from raftwood.disk.segment_log.format import (
    FLAG_HORIZON,
    FLUSH_HEADER_BYTES,
    MARK_COUNT,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    FlushHeader,
    encode_flush_header,
    offset_of,
    position_of,
    segment_of,
)
from raftwood.disk.segment_log.horizon import HorizonFile
from raftwood.disk.segment_log.segments import LogSettings, Segments

_JOIN_BYTES_MAX: Final = 128 << 10
_OBJECT_BYTES: Final = 512
"""About the memory of a flush without its records."""


class Flush:
    """Records in order, from `start`; once sealed, it takes no more."""

    __slots__ = (
        "_offsets",
        "body_bytes",
        "buffers",
        "dones",
        "needs_sync",
        "record_count",
        "start",
        "writtens",
    )

    def __init__(self, start: int) -> None:
        self.start = start
        self.buffers: list[Buffer] = []
        self.body_bytes = 0
        self.record_count = 0
        self.dones: list[Callable[[], None]] = []
        self.writtens: list[Callable[[], None]] = []
        self.needs_sync = False
        """Whether a caller waits until it is durable; else a later sync covers it."""
        self._offsets: list[int] = []

    @property
    def end(self) -> int:
        return self.start + FLUSH_HEADER_BYTES + self.body_bytes

    def seal(
        self, *, previous_end: int, synced: int, oldest_segment: int, log_seed: int
    ) -> list[Buffer]:
        """Returns the bytes to write. No record may be added afterwards."""
        header = FlushHeader(
            position=self.start,
            previous_end=previous_end,
            synced=synced,
            body_bytes=self.body_bytes,
            record_count=self.record_count,
            oldest_segment=oldest_segment,
            flags=FLAG_HORIZON,
        )
        self.buffers.insert(0, encode_flush_header(header, log_seed=log_seed))
        self._offsets.clear()
        if self.body_bytes <= _JOIN_BYTES_MAX:
            self.buffers = [b"".join(self.buffers)]
        return self.buffers

    def record(self, position: int, payload_bytes: int) -> tuple[memoryview, memoryview]:
        """Returns (header, payload) of the record at a position inside this flush."""
        offset = position - self.start
        sealed = len(self.buffers) % 2 == 1
        if sealed and len(self.buffers) == 1:
            data = memoryview(self.buffers[0])[offset:]
            return (
                data[:RECORD_HEADER_BYTES],
                data[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + payload_bytes],
            )
        if len(self._offsets) != len(self.buffers):
            # The flush header is a buffer of its own once sealed, and still to come before.
            first = 0 if sealed else FLUSH_HEADER_BYTES
            self._offsets = list(accumulate(map(len, self.buffers[:-1]), initial=first))
        # Of several buffers at one offset all but the last are empty payloads.
        row = bisect_right(self._offsets, offset) - 1
        return memoryview(self.buffers[row]), memoryview(self.buffers[row + 1])


class FlushCache:
    """The latest flushes, by position, within a bound of bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._flushes: deque[Flush] = deque()

    def add(self, flush: Flush) -> None:
        self._flushes.append(flush)
        self._bytes += flush.body_bytes + _OBJECT_BYTES

    def shrink(self, durable: int) -> None:
        """Drops the oldest flushes until within the bound, but only durable ones."""
        # A flush under way may not be in the file yet: its records can only be read here.
        while self._bytes > self._bytes_max and self._flushes[0].end <= durable:
            self._bytes -= self._flushes.popleft().body_bytes + _OBJECT_BYTES

    def find(self, position: int) -> Flush | None:
        flushes = self._flushes
        if not flushes or position < flushes[0].start:
            return None
        low, high = 0, len(flushes)
        while low < high:
            middle = (low + high) // 2
            if flushes[middle].start <= position:
                low = middle + 1
            else:
                high = middle
        flush = flushes[low - 1]
        return flush if position < flush.end else None


_IN_FLIGHT_MAX: Final = 2
_IDLE_MARK_SECONDS: Final = 0.02
_NOTE_SECONDS: Final = 0.05
_NOTE_SYNC_SECONDS: Final = 1.0
"""A busy log writes the horizon every `_NOTE_SECONDS` at most, and syncs it this often."""
_NOTE_SYNC_SHARE: Final = 10
"""On a slow disk it is synced once in the time of this many syncs: appends wait for each."""
_FORGET_HALF_SECONDS: Final = 10.0
"""Without a sync, the known speed of the disk counts half as much after this time."""
_FLUSHES_TO_CLOSE: Final = 2
_BARRIERS_BYTES: Final = 16 * FLUSH_HEADER_BYTES
"""Kept at a segment's end for empty flushes, which are written even when the disk is full."""


class SyncTime:
    """How long a flush takes to become durable, the newest ones counting most. No I/O, no clock.

    Flushes are synced one after the other: one that waits behind another is not slow for it.
    """

    __slots__ = ("_since", "_smoothed_s", "_under_way", "count")

    def __init__(self) -> None:
        self._smoothed_s = 0.0
        self._since = 0.0
        self._under_way = 0
        self.count = 0
        """The number of synced flushes."""

    @property
    def is_under_way(self) -> bool:
        return self._under_way > 0

    def began(self, now: float) -> None:
        if not self._under_way:
            self._smoothed_s = self._remembered_s(now)
            self._since = now
        self._under_way += 1

    def ended(self, now: float) -> None:
        took_s, self._since = now - self._since, now
        self._under_way -= 1
        self._smoothed_s = (self._smoothed_s + took_s) / 2 if self.count else took_s
        self.count += 1

    def estimate_ms(self, now: float) -> int | None:
        """The estimate; None before the first sync; one under way counts for as long as it takes.

        Older syncs count less and less: one stall must not make an idle disk slow for ever.
        """
        if not self.count and not self._under_way:
            return None
        since_s = now - self._since
        if self._under_way:
            return int(max(self._smoothed_s, since_s) * 1000)
        return int(self._remembered_s(now) * 1000)

    def _remembered_s(self, now: float) -> float:
        """The remembered time, faded by the time without a sync."""
        left: float = 0.5 ** ((now - self._since) / _FORGET_HALF_SECONDS)
        return self._smoothed_s * left


class Committer:
    """Assigns positions to records and makes them durable, in order."""

    def __init__(
        self,
        environment: Environment,
        settings: LogSettings,
        segments: Segments,
        horizon: HorizonFile,
        *,
        log_seed: int,
        previous_end: int,
    ) -> None:
        self._environment = environment
        self._horizon = horizon
        self._begun = segments.active
        """The last segment that the horizon names."""
        self._noted = previous_end
        """The position up to which the log is durable, by the horizon."""
        self._noted_at = 0.0
        self._has_ended = False
        self._note_timer: asyncio.TimerHandle | None = None
        self._settings = settings
        # A copy, since each record needs it.
        self._pending_bytes_max = settings.pending_bytes_max
        self._flush_bytes_max = settings.flush_bytes_max
        self._segments = segments
        self._log_seed = log_seed
        self._loop = asyncio.get_running_loop()
        self._previous_end = previous_end
        self._open = Flush(position_of(segments.active, SEGMENT_HEADER_BYTES))
        self._limit = position_of(
            segments.active, settings.segment_bytes - settings.reserve_bytes - FLUSH_HEADER_BYTES
        )
        self._sealed: deque[Flush] = deque()
        self._in_flight: deque[Flush] = deque()
        self._writing: deque[Flush] = deque()
        """Flushes in flight with callers that wait until they are written."""
        self._unsynced: deque[Flush] = deque()
        """Flushes that are written and not synced."""
        self._unsynced_from: int | None = None
        """The segment of the first unsynced flush for which no sync was submitted."""
        self._pump_scheduled = False
        self._mark_timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Future[None] | None = None
        self.synced = previous_end
        self.pending_bytes = 0
        self.flush_count = 0
        self.cache = FlushCache(settings.cache_bytes_max)
        self.sync_time = SyncTime()

    @property
    def end(self) -> int:
        """Where the next flush's records would end if none were added."""
        return self._open.end

    def take(
        self,
        buffers: Sequence[Buffer],
        record_bytes: int,
        record_count: int,
        done: Callable[[], None] | None,
        *,
        written: Callable[[], None] | None = None,
        may_use_reserve: bool = False,
    ) -> int:
        """Takes records into the open flush; returns their position, and changes nothing on error.

        `done` is called when they are durable; `written`, when the operating system has them. With
        `written` alone the next sync covers them.
        """
        # One write is taken, however large, if nothing waits: the bound may have been lowered since
        # a record was written that compaction has to copy now.
        # Test:
        # test_log_compaction::test_a_record_above_the_bound_of_waiting_bytes_is_taken_and_moved
        pending_bytes = self.pending_bytes
        if pending_bytes and pending_bytes + record_bytes > self._pending_bytes_max:
            raise Overloaded(f"{pending_bytes} bytes wait for the disk already: send less, or wait")
        flush = self._open
        body_bytes = flush.body_bytes
        position = flush.start + FLUSH_HEADER_BYTES + body_bytes
        if position + record_bytes > self._limit:
            self._turn_segment(record_bytes, may_use_reserve=may_use_reserve)
            flush, body_bytes, position = self._open, self._open.body_bytes, self._open.end
        elif body_bytes + record_bytes > self._flush_bytes_max and body_bytes:
            self._seal_open(next_start=position)
            flush, body_bytes, position = self._open, 0, self._open.end
        flush.buffers += buffers
        flush.body_bytes = body_bytes + record_bytes
        flush.record_count += record_count
        if done is not None:
            flush.dones.append(done)
        if written is not None:
            flush.writtens.append(written)
        if done is not None or written is None:
            flush.needs_sync = True
        self.pending_bytes = pending_bytes + record_bytes
        if not self._pump_scheduled and len(self._in_flight) < _IN_FLIGHT_MAX:
            self._pump_scheduled = True
            self._loop.call_soon(self.pump)
        return position

    def barrier(self, done: Callable[[], None]) -> None:
        """Writes a flush, even an empty one, and calls `done` when it and all before are durable.

        Its header also names the oldest segment still needed, and the position up to which the
        flushes before it were synced. `DiskFull` if not even an empty flush has room.
        """
        if self._open.end > self._limit and not (self._open.record_count or self._open.dones):
            if not self._is_stuck:
                self._go_on_in_next_segment()
            elif offset_of(self._open.end) > self._settings.segment_bytes:
                raise self._segments.disk_full()
        self._open.dones.append(done)
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self.pump)

    def when_durable(self, done: Callable[[], None]) -> None:
        """Calls `done` when all that was added so far is durable; writes nothing if it already is.

        Test: test_log_full_disk::test_syncs_of_an_idle_log_write_nothing
        """
        if self._open.record_count or self._open.dones:
            self._open.dones.append(done)
        elif self._sealed:
            self._sealed[-1].dones.append(done)
        elif self._in_flight and self._in_flight[-1].needs_sync:
            self._in_flight[-1].dones.append(done)
        elif self._in_flight or self._unsynced:
            self.barrier(done)
        else:
            self._loop.call_soon(done)

    def has_room_to_compact(self, live_bytes: int) -> bool:
        """Whether a segment with `live_bytes` may be freed.

        On a full disk the copies may take half of what is left of the reserve. The rest is for
        states and truncations: a store that cannot store a vote cannot vote, and one that cannot
        store a truncation never gets room again. Closing must find room for its flushes as well.
        Test: test_log_full_disk::test_compaction_leaves_the_reserve_to_states_and_truncations
        """
        if not self._is_stuck:
            return True
        flushes_left = (self._settings.segment_bytes - offset_of(self._open.start)) // (
            FLUSH_HEADER_BYTES
        )
        return flushes_left > _FLUSHES_TO_CLOSE and live_bytes * 2 <= max(0, self._reserve_left)

    def find(self, position: int) -> Flush | None:
        """Returns the flush in memory that holds a position."""
        return self._open if position >= self._open.start else self.cache.find(position)

    def hold(self) -> None:
        """Tells the committer not to schedule a turn: the caller pumps soon."""
        self._pump_scheduled = True

    def pump(self) -> None:
        """Sends flushes to the disk while fewer than two are in flight."""
        self._pump_scheduled = False
        # After the end the files are closed: a write would fail, and end the process. Test:
        # test_segment_log::test_a_log_that_is_given_up_with_writes_waiting_does_not_end_the_process
        while len(self._in_flight) < _IN_FLIGHT_MAX and not self._has_ended:
            if not self._sealed:
                if not (self._open.record_count or self._open.dones):
                    break
                self._seal_open(next_start=self._open.end)
            if not self._segments.is_ready(segment_of(self._sealed[0].start)):
                if self._segments.is_full and self._closing:
                    fail(self._closing, self._segments.disk_full())
                break
            self._submit(self._sealed.popleft())

    async def close(self) -> None:
        """Waits until all is durable, and leaves a mark that says so.

        `DiskFull` if records wait for a segment that has no room: they are given up, unacked.
        """
        try:
            # Two, because only a later flush can say that the one before it was synced.
            for _ in range(_FLUSHES_TO_CLOSE):
                closing = self._closing = self._loop.create_future()
                self.barrier(partial(_resolve, closing))
                await closing
            await self._note_closed()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Stops writing on its own initiative."""
        self._has_ended = True
        for timer in (self._mark_timer, self._note_timer):
            if timer is not None:
                timer.cancel()

    async def _note_closed(self) -> None:
        """Notes that nothing follows, so that the next start can tell if anything is missing."""
        # First, because a later note would say that the log is open.
        # Test: test_log_horizon::test_a_slow_disk_does_not_make_a_closed_log_an_open_one
        self.abandon()
        closing = self._loop.create_future()

        def noted(completion: Completion) -> None:
            self._marked(completion)
            _resolve(closing)

        operations = self._horizon.durable(synced=self.synced, begun=self._begun, is_closed=True)
        self._environment.files.submit(operations, noted)
        await closing

    def _turn_segment(self, record_bytes: int, *, may_use_reserve: bool) -> None:
        """Goes on in the next segment, or in the reserve if the disk is full."""
        if not self._is_stuck:
            self._go_on_in_next_segment()
        elif not may_use_reserve or record_bytes > self._reserve_left:
            raise self._segments.disk_full()

    @property
    def _is_stuck(self) -> bool:
        """Whether the disk is full, and there is no segment behind the active one."""
        return self._segments.is_full and not self._segments.is_ready(self._segments.active + 1)

    @property
    def _reserve_left(self) -> int:
        """The bytes that records may still take in the active segment when the disk is full."""
        return self._settings.segment_bytes - _BARRIERS_BYTES - offset_of(self._open.end)

    def _go_on_in_next_segment(self) -> None:
        segments = self._segments
        segments.prepare_next()
        segments.roll(used_bytes=offset_of(self._end_of_last_flush()))
        self._limit = position_of(segments.active, offset_of(self._limit))
        start = position_of(segments.active, SEGMENT_HEADER_BYTES)
        if self._open.record_count or self._open.dones:
            self._seal_open(next_start=start)
        else:
            self._open.start = start

    def _end_of_last_flush(self) -> int:
        flush = self._open
        return flush.end if flush.record_count or flush.dones else flush.start

    def _seal_open(self, *, next_start: int) -> None:
        self._sealed.append(self._open)
        self.cache.add(self._open)
        self._open = Flush(next_start)

    def _submit(self, flush: Flush) -> None:
        segments = self._segments
        if flush.start & 0xFFFFFFFF > self._settings.segment_bytes // 2:
            segments.prepare_next()
        buffers = flush.seal(
            previous_end=self._previous_end,
            synced=self.synced,
            oldest_segment=segments.oldest,
            log_seed=self._log_seed,
        )
        self._previous_end = flush.end
        self._in_flight.append(flush)
        self.flush_count += 1
        segment = segment_of(flush.start)
        segments.record_bytes[segment] += flush.body_bytes
        writes: list[seam.Operation] = []
        if segment > self._begun:
            # Durable before anything in the segment is acked. Suppose the segment is then deleted:
            # without the note the log would end whole with the segment before, and the store would
            # vote with a log that lacks what it acknowledged (decision 0033). Test:
            # test_log_horizon::test_after_a_kill_the_loss_of_the_newest_segment_is_noticed
            self._begun = segment
            writes += self._horizon.durable(synced=self.synced, begun=segment, is_closed=False)
        writes.append(seam.Write(segments.path(segment), offset_of(flush.start), buffers))
        if flush.dones:
            flush.needs_sync = True
        first, self._unsynced_from = self._unsynced_from, None
        if first is None:
            first = segment
        submit = self._environment.files.submit
        if flush.needs_sync:
            self.sync_time.began(self._loop.time())
        else:
            self._unsynced_from = first
        if flush.writtens or not flush.needs_sync:
            self._writing.append(flush)
            submit(writes, self._written)
            if flush.needs_sync:
                submit(self._syncs(first, segment), self._flushed)
        else:
            submit((*writes, *self._syncs(first, segment)), self._flushed)

    def _syncs(self, first: int, last: int) -> list[seam.Operation]:
        # A sync covers one file, and flushes that were only written may lie in segments before.
        # Test: test_log_written::test_a_sync_takes_along_what_was_written_to_segments_before
        return [seam.DataSync(self._segments.path(number)) for number in range(first, last + 1)]

    def _written(self, completion: Completion) -> None:
        if completion.error is not None:
            self._end_process(completion)
        flush = self._writing.popleft()
        if not flush.needs_sync:
            self._unsynced.append(self._in_flight.popleft())
            self.pump()
        writtens, flush.writtens = flush.writtens, []
        _call_all(iter(writtens), self._loop)

    def _flushed(self, completion: Completion) -> None:
        if completion.error is not None:
            self._end_process(completion)
        now = self._loop.time()
        self.sync_time.ended(now)
        flush = self._in_flight.popleft()
        for number in range(segment_of(self.synced), segment_of(flush.start)):
            self._segments.seal(number)
        self.synced = flush.end
        self.pending_bytes -= flush.body_bytes
        while self._unsynced:
            self.pending_bytes -= self._unsynced.popleft().body_bytes
        self.cache.shrink(self.synced)
        if now - self._noted_at >= _NOTE_SECONDS:
            self._note()
        if self._sealed or self._open.record_count or self._open.dones:
            self.pump()
        elif self._mark_timer is None and not self._in_flight and not self._has_ended:
            self._mark_timer = self._loop.call_later(_IDLE_MARK_SECONDS, self._mark_idle)
        dones = flush.dones
        flush.dones = []
        _call_all(iter(dones), self._loop)

    def _mark_idle(self) -> None:
        """Notes on disk, unsynced, that the last flush is durable (decision 0003).

        Each flush says what was synced before it, so only the last one depends on the mark. Without
        it a flipped bit in the last flush would be cut off as a torn tail, and what was acked in it
        would be lost in silence. The next flush takes the mark's place.
        Test: test_log_horizon::test_an_idle_log_s_zeroed_tail_is_noticed
        """
        self._mark_timer = None
        if (
            self._in_flight
            or self._unsynced
            or self._sealed
            or self._open.record_count
            or self._open.dones
        ):
            return
        self._note()
        start = self._open.start
        has_room = offset_of(start) + FLUSH_HEADER_BYTES <= self._settings.segment_bytes
        if not has_room or not self._segments.is_ready(segment_of(start)):
            return
        mark = Flush(start)
        mark.record_count = MARK_COUNT
        buffers = mark.seal(
            previous_end=self._previous_end,
            synced=self.synced,
            oldest_segment=self._segments.oldest,
            log_seed=self._log_seed,
        )
        path = self._segments.path(segment_of(start))
        write = seam.Write(path, offset_of(start), buffers)
        self._environment.files.submit((write,), self._marked)

    def _note(self) -> None:
        """Notes in the horizon how far all is durable; one sync later covers many notes.

        A sync for each flush would double the time of an append (decision 0033).
        """
        if self._has_ended or self._noted == self.synced:
            return
        self._noted, self._noted_at = self.synced, self._loop.time()
        note = self._horizon.note(synced=self.synced, begun=self._begun)
        self._environment.files.submit((note,), self._marked)
        if self._note_timer is None:
            sync_s = (self.sync_time.estimate_ms(self._noted_at) or 0) / 1000
            delay_s = max(_NOTE_SYNC_SECONDS, _NOTE_SYNC_SHARE * sync_s)
            self._note_timer = self._loop.call_later(delay_s, self._sync_note)

    def _sync_note(self) -> None:
        self._note_timer = None
        self._environment.files.submit((seam.DataSync(self._horizon.path),), self._marked)

    def _marked(self, completion: Completion) -> None:
        if completion.error is not None:
            self._end_process(completion)

    def _end_process(self, completion: Completion) -> None:
        operation = type(completion.failed).__name__
        self._environment.end_process(
            f"the log cannot go on, because what the disk holds is unknown: {operation} failed: "
            f"{completion.error}. Check the disk, then start again: nothing acked is lost"
        )


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _call_all(dones: Iterator[Callable[[], None]], loop: asyncio.AbstractEventLoop) -> None:
    """Calls each callback; an error in one does not stop the rest."""
    try:
        for done in dones:
            done()
    except BaseException:
        loop.call_soon(_call_all, dones, loop)
        raise
