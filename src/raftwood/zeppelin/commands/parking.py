"""Requests that wait while their partition is handed over: how many may, and how long they did."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from raftwood.zeppelin.commands.refusals import Refused

PARKED_MAX: Final = 10_000
PARKED_BYTES_MAX: Final = 64 << 20
"""Of requests together, plus one."""
RECENT_MAX: Final = 1_000
"""So many waits are kept for those who ask how long they were."""
FULL: Final = "TRYAGAIN too many requests wait for a hand-over to another node"


class Parking:
    """Of all clients of a node."""

    def __init__(self) -> None:
        self.count = 0
        """That wait now."""
        self.size = 0
        """Their bytes."""
        self.total = 0
        """That have waited since the node was started."""
        self.longest_s = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT_MAX)
        self.observe: Callable[[float], None] = lambda _: None
        """Hears of each wait when it is over."""

    @contextmanager
    def parked(self, request: list[bytes]) -> Iterator[None]:
        """While a request waits; `Refused` where too many do."""
        if self.count >= PARKED_MAX or self.size > PARKED_BYTES_MAX:
            raise Refused(FULL)
        loop = asyncio.get_running_loop()
        began, size = loop.time(), sum(map(len, request))
        self.count += 1
        self.size += size
        try:
            yield
        finally:
            self.count -= 1
            self.size -= size
            self._note(loop.time() - began)

    def _note(self, waited_s: float) -> None:
        self.total += 1
        self.longest_s = max(self.longest_s, waited_s)
        self._recent.append(waited_s)
        self.observe(waited_s)

    def quantile_s(self, share: float) -> float:
        """So long, or shorter, that share of the last requests waited; 0 where none did."""
        ordered = sorted(self._recent)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
