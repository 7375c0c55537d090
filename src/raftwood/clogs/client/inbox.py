"""What threads have given and nobody has taken up yet: giving costs next to nothing, and no lock.

The inbox is bounded by its items and by the bytes of the large ones among them, so that together it
holds `memory_bytes_max` at the most, beside as much in the backlog. Where it is full the oldest
are dropped and counted, unless whoever gives waits.
"""

import threading
from collections import deque
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from raftwood.base.errors import ShuttingDown
from raftwood.clogs.client.deliveries import Delivery
from raftwood.clogs.client.pending import Fields
from raftwood.clogs.client.shipper import AsyncShipper
from raftwood.clogs.errors import LinesDropped
from raftwood.clogs.lines import encoded_text

LARGE_BYTES: Final = 1024
"""From here on an item's bytes are counted; smaller ones are counted as items alone."""
ITEMS_MIN: Final = 1024
ITEMS_MAX: Final = 65_536
_FIELDS_MAX: Final = 4_096


class GivenLines(NamedTuple):
    """Lines of one file that were given at once."""

    name: str
    lines: list[bytes]
    time_ns: int | None
    delivery: Delivery
    size: int


GivenRecord: TypeAlias = tuple[str, str, float, str, str]
"""For handlers, whose calls are many: file, text, time, level and logger."""
Item: TypeAlias = GivenLines | GivenRecord


class Inbox:
    """Items of all threads, in order per thread."""

    def __init__(self, memory_bytes_max: int) -> None:
        self._lock = threading.Lock()
        self._large_bytes = 0
        self._large_bytes_max = memory_bytes_max
        self._dropped_lines = 0
        self.items: deque[Item] = deque()
        self.items_max = min(ITEMS_MAX, max(ITEMS_MIN, memory_bytes_max // LARGE_BYTES))

    def has_room(self) -> bool:
        return len(self.items) < self.items_max and self._large_bytes < self._large_bytes_max

    def announce(self, size: int) -> None:
        """A large item is about to be put."""
        if size > LARGE_BYTES:
            with self._lock:
                self._large_bytes += size

    def make_room(self) -> None:
        """Drop the oldest until there is room for one more."""
        while self.items and not self.has_room():
            try:
                item = self.items.popleft()
            except IndexError:
                return  # all were taken up meanwhile
            self.took(item)
            lines = line_count(item)
            with self._lock:
                self._dropped_lines += lines
            if isinstance(item, GivenLines):
                item.delivery.settle(lines, LinesDropped("there was no room for the lines"))

    def took(self, item: Item) -> None:
        """To be called for each item that was taken from `items`."""
        size = item.size if isinstance(item, GivenLines) else len(item[1])
        if size > LARGE_BYTES:
            with self._lock:
                self._large_bytes -= size

    def take_back(self, item: Item) -> bool:
        """Whether an item was still there, and is not any more."""
        try:
            self.items.remove(item)
        except ValueError:
            return False
        self.took(item)
        return True

    def dropped_since(self) -> int:
        """Lines that were dropped since this was asked last."""
        if not self._dropped_lines:
            return 0
        with self._lock:
            dropped, self._dropped_lines = self._dropped_lines, 0
        return dropped

    def drain(self, shipper: AsyncShipper, items_max: int) -> int:
        """On the shipper's loop: hand over what is there; how many items that were."""
        if dropped := self.dropped_since():
            shipper.count_dropped(dropped)
        items, taken = self.items, 0
        records: list[GivenRecord] = []
        while items and taken < items_max:
            try:
                item = items.popleft()
            except IndexError:
                break  # a thread has dropped the last one to make room
            taken += 1
            if isinstance(item, GivenLines) or (records and records[-1][0] != item[0]):
                self._hand_over(records, shipper)
                records = []
            if isinstance(item, GivenLines):
                self.took(item)
                shipper.take(item.name, item.lines, time_ns=item.time_ns, delivery=item.delivery)
            else:
                records.append(item)
        self._hand_over(records, shipper)
        return taken

    def _hand_over(self, records: list[GivenRecord], shipper: AsyncShipper) -> None:
        """Those of one file, which came one behind the other."""
        if not records:
            return
        _, texts, times_s, levels, loggers = zip(*records, strict=True)
        for record in records:
            if len(record[1]) > LARGE_BYTES:
                self.took(record)
        shipper.take_records(
            records[0][0],
            list(map(_line, texts)),
            times_ns=list(map(_nanoseconds, times_s)),
            fields=list(map(_fields, map(str, levels), map(str, loggers))),
        )

    def give_up(self) -> int:
        """At the end: how many lines are dropped here; whoever waits for some is told."""
        dropped = self.dropped_since()
        while self.items:
            try:
                item = self.items.popleft()
            except IndexError:
                break  # somebody has taken the last one back
            lines = line_count(item)
            dropped += lines
            if isinstance(item, GivenLines):
                reason = "the shipper was closed before the lines were taken up"
                item.delivery.settle(lines, ShuttingDown(reason))
        return dropped


def line_count(item: Item) -> int:
    return len(item.lines) if isinstance(item, GivenLines) else 1


@lru_cache(maxsize=_FIELDS_MAX)
def _fields(level: str, logger: str) -> Fields:
    """The same for all records with both: they are encoded once for each batch."""
    return {"level": level, "logger": logger}


def _line(text: object) -> bytes:
    """Formatters may make bytes, or what is no text at all."""
    if isinstance(text, bytes):
        return text
    return encoded_text(text if isinstance(text, str) else str(text))


def _nanoseconds(time_s: float) -> int:
    try:
        return int(time_s * 1_000_000) * 1000
    except (ValueError, OverflowError, TypeError):
        return 0  # it is no time, but the line is a line
