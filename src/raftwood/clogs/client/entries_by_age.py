"""Entries by the order of their making, of which the oldest is wanted: no I/O."""

import heapq
from typing import Final

from raftwood.clogs.client.entries import Entry

_STALE_MAX: Final = 64


class EntriesByAge:
    """They come in any order: of those in memory the newest are spooled first."""

    def __init__(self) -> None:
        self._orders: dict[Entry, int] = {}
        self._heap: list[tuple[int, Entry]] = []

    def add(self, entry: Entry, order: int) -> None:
        self._orders[entry] = order
        if len(self._heap) > 2 * len(self._orders) + _STALE_MAX:
            self._heap = [(each, found) for found, each in self._orders.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (order, entry))

    def remove(self, entry: Entry) -> int:
        """Its order; 0 where it is not there."""
        return self._orders.pop(entry, 0)

    def oldest(self) -> tuple[int, Entry] | None:
        while self._heap and self._heap[0][1] not in self._orders:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None
