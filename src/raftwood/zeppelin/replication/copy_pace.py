"""Paces the whole copies that a node sends and receives, by the latency of its clients.

A node that joins receives terabytes, from nodes that serve clients at the same time. A fixed limit
is too low at night and too high at noon. So while clients wait no longer than they are meant to, or
than about twice as long as without any copy, copies become faster step by step; once clients wait
longer, copies get half as much (AIMD, as in TCP). Never below a floor, so that each copy comes to
its end even where clients always wait
(`test_where_clients_wait_for_long_anyhow_copies_come_to_their_end`). `CopyPace` is the rule,
without I/O.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

LOOK_MS: Final = 100
"""Interval of looks at the clients during a copy."""
QUIET_TIMES: Final = 2.0
"""Clients may wait this many times as long as without copies."""
_STEP: Final = 1 / 64
"""Share of the maximum that one look adds."""
_ALONE_TIMES: Final = 2.0
"""Factor of a look without clients."""
_QUIET_WEIGHT: Final = 0.2
_BURST_S: Final = 0.02
"""How much unused time a copy may use later."""


class CopyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of all copies of a node together."""

    latency_ms: int = 10
    """A latency of clients that never slows copies down."""
    bytes_per_s_min: int = 2 << 20
    bytes_per_s_max: int = 512 << 20


class CopyPace:
    """The pace of one node's copies."""

    def __init__(self, limits: CopyLimits) -> None:
        self._limits = limits
        self.bytes_per_s = float(self._begin)
        self.quiet_ms = 0.0
        """Latency of clients without a copy. Waits during copies do not count, or the measure would
        grow with what it should bound
        (`test_what_clients_wait_amid_copies_is_not_taken_for_their_quiet`)."""
        self._free_s = 0.0
        """When all admitted bytes have used their time."""

    @property
    def _begin(self) -> int:
        limits = self._limits
        return max(limits.bytes_per_s_min, limits.bytes_per_s_max // 32)

    def looked_without_copies(self, latency_ms: float | None) -> None:
        """Takes the latency of clients without copies; None: there were no clients."""
        if latency_ms is not None:
            self.quiet_ms += _QUIET_WEIGHT * (latency_ms - self.quiet_ms)
        self.bytes_per_s = float(self._begin)

    def looked(self, latency_ms: float | None) -> None:
        """Takes the latency of clients during copies; None: there were no clients."""
        limits = self._limits
        if latency_ms is None:
            wanted = self.bytes_per_s * _ALONE_TIMES
        elif latency_ms <= max(limits.latency_ms, QUIET_TIMES * self.quiet_ms):
            wanted = self.bytes_per_s + limits.bytes_per_s_max * _STEP
        else:
            wanted = self.bytes_per_s / 2
        self.bytes_per_s = min(max(wanted, limits.bytes_per_s_min), limits.bytes_per_s_max)

    def wait_s(self, size: int, now_s: float) -> float:
        """Returns how long to wait before so many bytes continue."""
        self._free_s = max(self._free_s, now_s - _BURST_S) + size / self.bytes_per_s
        return max(0.0, self._free_s - now_s)


# The throttle of a node's copies, sent and received.

_QUIET_LOOK_MS: Final = 500


class CopyThrottle:
    """Delays copies. Call `close` when done."""

    def __init__(self, limits: CopyLimits, waited_ms: Callable[[], float | None]) -> None:
        """`waited_ms` returns the latency of clients since its last call; None: no request came."""
        self.pace = CopyPace(limits)
        self._waited_ms = waited_ms
        self._copies = 0
        self._loop = asyncio.get_running_loop()
        self._due_s = 0.0
        self._timer = self._look_in(_QUIET_LOOK_MS)

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Marks that a copy is running."""
        if not self._copies:
            self._timer.cancel()
            self._timer = self._look_in(LOOK_MS)
        self._copies += 1
        try:
            yield
        finally:
            self._copies -= 1

    async def turn(self, size: int) -> None:
        """Waits until so many bytes of a copy may continue."""
        wait_s = self.pace.wait_s(size, self._loop.time())
        # Even without a wait: other tasks of the loop run between two chunks.
        await asyncio.sleep(wait_s)

    def close(self) -> None:
        self._timer.cancel()

    def _look_in(self, span_ms: int) -> asyncio.TimerHandle:
        self._due_s = self._loop.time() + span_ms / 1000
        return self._loop.call_at(self._due_s, self._look)

    def _look(self) -> None:
        # A loop that is late for this look is late for its clients too, before it can count their
        # waits (`test_a_loop_that_is_held_up_counts_as_much_as_clients_that_wait`).
        late_ms = 1_000 * (self._loop.time() - self._due_s)
        waited_ms = self._waited_ms()
        latency_ms = None if waited_ms is None else waited_ms + late_ms
        if self._copies:
            self.pace.looked(latency_ms)
        else:
            self.pace.looked_without_copies(latency_ms)
        self._timer = self._look_in(LOOK_MS if self._copies else _QUIET_LOOK_MS)
