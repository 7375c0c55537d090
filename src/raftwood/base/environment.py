"""The seam to the outside world: clocks, randomness, one disk, and the end of the process.

The network and timers come from the running event loop. Code that takes these from an
`Environment` runs unchanged in simulation; `time`, `random`, `os.urandom`, threads and plain files
do not.
"""

import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, Protocol

import msgspec

from raftwood.base.files import Files


class Clock(Protocol):
    """Time as one node sees it."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970: for people and for TTLs; it may jump."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary moment; never goes back, and counts while suspended."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


async def at_once(work: Callable[[], Any]) -> Any:
    """Does the work on the event loop, as simulations do."""
    return work()


class Environment(msgspec.Struct, frozen=True):
    """One process's view of the world; the simulator makes one for each node."""

    clock: Clock
    random: random.Random
    files: Files
    end_process: Callable[[str], NoReturn]
    """Ends the process at once, running no clean-up: after a failed sync the memory may no longer
    match the disk."""
    compute: Callable[[Callable[[], Any]], Awaitable[Any]] = at_once
    """Does a piece of pure work that cannot be cut into slices, beside the loop while it releases
    the interpreter's lock: no other code may change its data meanwhile."""
