"""A flush: the records that one write and one sync carry, kept while they may still be read.

The buffers that a caller handed in are written as they are and served to readers as they are;
nothing is copied but small ones, which are joined so that the kernel gets one piece.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import Final

from raftwood.base.files import Buffer
from raftwood.disk.segment_log.format import (
    FLAG_HORIZON,
    FLUSH_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    FlushHeader,
    encode_flush_header,
)

_JOIN_BYTES_MAX: Final = 128 << 10
_OBJECT_BYTES: Final = 512
"""About what a flush takes besides its records."""


class Flush:
    """Records in order, from `start`; sealed once, when nothing more may join."""

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
        """Somebody wants it to be durable soon; else it waits for a later one to be synced."""
        self._offsets: list[int] = []

    @property
    def end(self) -> int:
        return self.start + FLUSH_HEADER_BYTES + self.body_bytes

    def seal(
        self, *, previous_end: int, synced: int, oldest_segment: int, log_seed: int
    ) -> list[Buffer]:
        """The bytes to write. No record may be added afterwards."""
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
        """(header, payload) of the record at a position inside this flush."""
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
        """Drop the oldest until within the bound; what is not durable yet stays readable."""
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
