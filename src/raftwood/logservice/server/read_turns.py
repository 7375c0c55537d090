"""Bounds on reads under way: a few tiny requests can ask for more than fits the memory.

Reads that wait at the end of a log are tasks of the server, which has room for so many: others,
such as the heartbeats of stores, need some as well.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from raftwood.base.errors import Overloaded
from raftwood.net import Call

READS_AT_ONCE: Final = 16
"""Each takes up to `read_bytes_max` of memory, some times over."""
WAITING_MAX: Final = 2_048
CONGESTED_PAUSE_S: Final = 0.01


class ReadTurns:
    """Of one store."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(READS_AT_ONCE)
        self.waiting = 0

    @contextmanager
    def patience(self, wait_ms: int) -> Iterator[None]:
        """Around a read that may wait for records to come."""
        if wait_ms > 0 and self.waiting >= WAITING_MAX:
            raise Overloaded(
                f"{self.waiting} readers wait for records on this store: try again later"
            )
        patient = int(wait_ms > 0)
        self.waiting += patient
        try:
            yield
        finally:
            self.waiting -= patient

    @asynccontextmanager
    async def turn(self, call: Call) -> AsyncIterator[None]:
        """Around what takes memory; not before the caller has taken what it asked for earlier."""
        while True:
            async with self._turns:
                if not call.is_congested:
                    yield
                    return
            await asyncio.sleep(CONGESTED_PAUSE_S)
