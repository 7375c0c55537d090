"""What lanes have alike: attempts, what an error leaves open, who follows a log that has ended."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar
from zlib import crc32

from raftwood.base.backoff import Backoff
from raftwood.base.errors import (
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    InternalError,
    ProtocolError,
    Unavailable,
)

Found = TypeVar("Found")

DOUBTFUL: Final = (ConnectionLost, DeadlineExceeded, Cancelled, InternalError, ProtocolError)
"""After these nobody knows whether a batch is stored; sent again as it was, it is stored once."""
_PAUSE_S: Final = 0.05


class LaneAttempts:
    """Failures in a row, and when the next attempt may begin. The base of a sender's lanes."""

    __slots__ = ("_draw", "failures", "retry_at")

    def __init__(self, name: str) -> None:
        """Lanes of different names do not come again in the same moment."""
        # Rules have no randomness of their own, and a name serves as well.
        self._draw = crc32(name.encode()) % 1024 / 1024
        self.failures = 0
        self.retry_at = 0.0
        """0: the lane does not wait."""

    def failed(self, backoff: Backoff, now: float) -> None:
        self.retry_at = now + backoff.delay_ms(self.failures, self._draw) / 1000
        self.failures += 1

    def recovered(self) -> None:
        self.failures, self.retry_at = 0, 0.0


async def successor(
    find: Callable[[], Awaitable[Found | None]], *, timeout_s: float, missing: str
) -> Found:
    """Who takes what a log that has ended refuses: it may still be in the making.

    `missing` says what there is not, where none comes in time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while (found := await find()) is None:
        if loop.time() > deadline:
            raise Unavailable(f"{missing}: is the logstore being deleted?")
        await asyncio.sleep(_PAUSE_S)
    return found
