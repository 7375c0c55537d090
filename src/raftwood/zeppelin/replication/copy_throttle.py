"""A node's copies as they are let through: both those that it sends and those that it takes."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from raftwood.zeppelin.replication.copy_pace import LOOK_MS, CopyLimits, CopyPace

_QUIET_LOOK_MS: Final = 500


class CopyThrottle:
    """Use `close` when done."""

    def __init__(self, limits: CopyLimits, waited_ms: Callable[[], float | None]) -> None:
        """`waited_ms` tells how long clients have waited since it was asked last; None: nobody
        asked for anything.
        """
        self.pace = CopyPace(limits)
        self._waited_ms = waited_ms
        self._copies = 0
        self._loop = asyncio.get_running_loop()
        self._due_s = 0.0
        self._timer = self._look_in(_QUIET_LOOK_MS)

    @contextmanager
    def copying(self) -> Iterator[None]:
        """While a copy is under way."""
        if not self._copies:
            self._timer.cancel()
            self._timer = self._look_in(LOOK_MS)
        self._copies += 1
        try:
            yield
        finally:
            self._copies -= 1

    async def turn(self, size: int) -> None:
        """Wait until so much more of a copy may go on."""
        wait_s = self.pace.wait_s(size, self._loop.time())
        # Others of the loop have their turns between, however fast it may go.
        await asyncio.sleep(wait_s)

    def close(self) -> None:
        self._timer.cancel()

    def _look_in(self, span_ms: int) -> asyncio.TimerHandle:
        self._due_s = self._loop.time() + span_ms / 1000
        return self._loop.call_at(self._due_s, self._look)

    def _look(self) -> None:
        # A loop that comes late to this comes late to its clients, too.
        late_ms = 1_000 * (self._loop.time() - self._due_s)
        waited_ms = self._waited_ms()
        latency_ms = None if waited_ms is None else waited_ms + late_ms
        if self._copies:
            self.pace.looked(latency_ms)
        else:
            self.pace.looked_without_copies(latency_ms)
        self._timer = self._look_in(LOOK_MS if self._copies else _QUIET_LOOK_MS)
