"""`LeaseWatch`: when leases end, as judged by one observer of their renewals.

The observer hears of a renewal after it has happened, and counts from then on with its own clock:
so it may take a lease for ended too late, but never too early.
"""

import heapq


class LeaseWatch:
    """Leases, and when each is over if no renewal is observed before. Times are in milliseconds."""

    def __init__(self) -> None:
        self._ttl: dict[int, int] = {}
        self._deadline: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        """Each lease once, at its deadline or an earlier one."""

    def begin(self, ttls: dict[int, int], now_ms: int) -> None:
        """Observe these leases, all as if they had been renewed now."""
        self._ttl = dict(ttls)
        self._deadline = {lease: now_ms + ttl for lease, ttl in ttls.items()}
        self._heap = [(deadline, lease) for lease, deadline in self._deadline.items()]
        heapq.heapify(self._heap)

    def renewed(self, lease: int, now_ms: int) -> None:
        """A renewal was observed."""
        if lease in self._ttl:
            self._deadline[lease] = now_ms + self._ttl[lease]

    def granted(self, lease: int, ttl_ms: int, now_ms: int) -> None:
        self._ttl[lease] = ttl_ms
        self._deadline[lease] = now_ms + ttl_ms
        heapq.heappush(self._heap, (now_ms + ttl_ms, lease))

    def ended(self, lease: int) -> None:
        self._ttl.pop(lease, None)
        self._deadline.pop(lease, None)

    def due(self, now_ms: int, limit: int) -> list[int]:
        """Leases that are over; told again until `ended`."""
        found: list[int] = []
        while self._heap and self._heap[0][0] <= now_ms and len(found) < limit:
            _, lease = heapq.heappop(self._heap)
            if self._deadline.get(lease, now_ms + 1) <= now_ms:
                found.append(lease)
            elif lease in self._deadline:
                heapq.heappush(self._heap, (self._deadline[lease], lease))
        for lease in found:
            heapq.heappush(self._heap, (self._deadline[lease], lease))
        return found
