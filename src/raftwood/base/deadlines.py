"""Waiting within a time, with an error that says what was waited for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from raftwood.base.errors import DeadlineExceeded


@asynccontextmanager
async def within(timeout_ms: int, what: str) -> AsyncIterator[None]:
    """`DeadlineExceeded` in place of whatever does not end in time."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            yield
    except TimeoutError:
        raise DeadlineExceeded(f"{what} did not end in {timeout_ms} ms") from None
