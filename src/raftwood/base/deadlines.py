"""Timeouts, with an error that names the awaited thing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from raftwood.base.errors import DeadlineExceeded


@asynccontextmanager
async def within(timeout_ms: int, what: str) -> AsyncIterator[None]:
    """Bounds a block's time: raises `DeadlineExceeded`, which names `what`, when it is over."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            yield
    except TimeoutError:
        raise DeadlineExceeded(f"{what} did not end in {timeout_ms} ms") from None
