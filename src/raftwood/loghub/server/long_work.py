"""Work on a large body that cannot be cut into slices: a thread does it, beside the loop.

The libraries for LZ4's blocks and for snappy unpack a body in one call. The one for zstd can stop
half-way, but bounds its input alone, and 16 kB of input may unpack to half a gigabyte. All three,
digests and Arrow release the interpreter's lock while they work.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from raftwood.base.environment import Environment

ON_LOOP_BYTES_MAX: Final = 1 << 20
"""The loop takes a millisecond or two for this much; below it a thread costs more."""
T = TypeVar("T")


class LongWork:
    """Runs a gateway's long work."""

    def __init__(self, environment: Environment) -> None:
        self._compute = environment.compute

    async def do(self, work: Callable[[], T], *, size: int) -> T:
        """Returns the result of pure work on `size` bytes that must not change meanwhile."""
        if size <= ON_LOOP_BYTES_MAX:
            return work()
        done: T = await self._compute(work)
        return done
