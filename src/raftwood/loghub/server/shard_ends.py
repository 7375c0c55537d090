"""`until_end`: who waits for more of a shard hears when it is split, merged or deleted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from raftwood.loghub.model import Logstore
from raftwood.loghub.server.metadata import Metadata


@asynccontextmanager
async def until_end(metadata: Metadata, key: str, shard: int) -> AsyncIterator[None]:
    """Its body is interrupted by a `TimeoutError` once the copy of the metadata has the end."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as patience:

        def look() -> None:
            known = metadata.copy(key, Logstore)
            found = None if known is None else known.shard(shard)
            if found is None or found.ends_at is not None:
                patience.reschedule(loop.time())

        with metadata.heard(key, look):
            yield
