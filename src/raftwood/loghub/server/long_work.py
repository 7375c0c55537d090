"""Work on a large body that cannot be cut into slices: it is done beside the loop.

The libraries for LZ4's blocks and for snappy know no half-way. That for zstd does, but bounds only
what goes in, and 16 kB of it may stand for half a gigabyte. All of them, digests and Arrow let go
of the interpreter's lock.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from raftwood.base.environment import Environment

ON_LOOP_BYTES_MAX: Final = 1 << 20
"""Takes a millisecond or two; to hand over less to a thread costs more than it gains."""
T = TypeVar("T")


class LongWork:
    """Of a gateway."""

    def __init__(self, environment: Environment) -> None:
        self._compute = environment.compute

    async def do(self, work: Callable[[], T], *, size: int) -> T:
        """Work on so many bytes; pure, and on nothing that others change."""
        if size <= ON_LOOP_BYTES_MAX:
            return work()
        done: T = await self._compute(work)
        return done
