"""What all lanes share: retries, which errors leave a batch in doubt, and a log's successor."""

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
"""After these errors the batch may or may not be stored. Sent again unchanged, it is stored once.
"""
_PAUSE_S: Final = 0.05


class LaneAttempts:
    """Counts failures in a row and schedules the next attempt. The base of a sender's lanes."""

    __slots__ = ("_draw", "failures", "retry_at")

    def __init__(self, name: str) -> None:
        """The name spreads retries: lanes of different names do not retry at the same moment."""
        # Rules have no randomness of their own; a hash of the name serves as well.
        self._draw = crc32(name.encode()) % 1024 / 1024
        self.failures = 0
        self.retry_at = 0.0
        """When the next attempt may begin; 0 if the lane does not wait."""

    def failed(self, backoff: Backoff, now: float) -> None:
        self.retry_at = now + backoff.delay_ms(self.failures, self._draw) / 1000
        self.failures += 1

    def recovered(self) -> None:
        self.failures, self.retry_at = 0, 0.0


async def successor(
    find: Callable[[], Awaitable[Found | None]], *, timeout_s: float, missing: str
) -> Found:
    """Returns the log that replaces one that has ended; waits while it is being created.

    `missing` is the text of the error if there is none after `timeout_s`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while (found := await find()) is None:
        if loop.time() > deadline:
            raise Unavailable(f"{missing}: is the logstore being deleted?")
        await asyncio.sleep(_PAUSE_S)
    return found
