"""`Deadlines`: which leases are over, found without looking at all of them.

A renewal only notes the new deadline; the heap still holds the old one, and is put right when that
comes to its top. So renewing is cheap, and finding what is due costs by what is due.
"""

import heapq
from typing import Final

_SPARE: Final = 64
"""The heap may hold so many entries of leases that are gone, and as many more as there are left."""


class Deadlines:
    """A deadline for each lease, in milliseconds; it never goes back."""

    def __init__(self) -> None:
        self._deadlines: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        """Each lease once, at its deadline or an earlier one."""

    def set(self, lease: int, *, deadline_ms: int) -> None:
        before = self._deadlines.get(lease)
        if before is None:
            heapq.heappush(self._heap, (deadline_ms, lease))
        self._deadlines[lease] = deadline_ms if before is None else max(before, deadline_ms)

    def remove(self, lease: int) -> None:
        """Forget a lease for good; its number is not used again."""
        self._deadlines.pop(lease, None)
        if len(self._heap) > 2 * len(self._deadlines) + _SPARE:
            self._heap = [(deadline, each) for each, deadline in self._deadlines.items()]
            heapq.heapify(self._heap)

    @property
    def next_ms(self) -> int | None:
        """The earliest deadline."""
        while self._heap:
            deadline, lease = self._heap[0]
            current = self._deadlines.get(lease)
            if current == deadline:
                return deadline
            if current is None:
                heapq.heappop(self._heap)
            else:
                heapq.heapreplace(self._heap, (current, lease))
        return None

    def due(self, now_ms: int) -> list[int]:
        """The leases that are over, by number; they stay until they are removed."""
        found: list[tuple[int, int]] = []
        while (deadline := self.next_ms) is not None and deadline <= now_ms:
            found.append(heapq.heappop(self._heap))
        for each in found:
            heapq.heappush(self._heap, each)
        return sorted(lease for _, lease in found)
