"""Deadlines of many requests through one timer.

The timer is set to the earliest deadline known. Requests of one kind have rising deadlines, so a
new one hardly ever moves the timer, and most are answered long before it fires: the cost per
request is one comparison.
"""

import asyncio
from collections.abc import Callable

SWEEP_INTERVAL_S = 0.005
"""The shortest time between two sweeps, so that many deadlines close together share one."""
NEVER = float("inf")


class DeadlineSweep:
    """Calls `expire(now)` when a deadline has passed; it answers the earliest deadline left."""

    __slots__ = ("_expire", "_loop", "_timer", "due")

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[float], float]) -> None:
        self._loop = loop
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None
        self.due = NEVER
        """When the next sweep comes; the owner calls `move` with an earlier deadline."""

    def move(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.due = due
        self._timer = None if due == NEVER else self._loop.call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        # A timer may fire a moment early by the loop's clock resolution.
        now = max(self._loop.time(), self.due)
        self.due = NEVER
        earliest = self._expire(now)
        if earliest < self.due:
            self.move(max(earliest, now + SWEEP_INTERVAL_S))

    def stop(self) -> None:
        self.move(NEVER)
