"""`Pace`: so many bytes a second, however many take some."""

import asyncio

from raftwood.base.errors import InvalidInput


class Pace:
    """Without a rate nobody waits."""

    def __init__(self, bytes_per_s: int | None) -> None:
        if bytes_per_s is not None and bytes_per_s < 1:
            raise InvalidInput(f"a rate of {bytes_per_s} bytes a second: give 1 or more")
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    async def take(self, size: int) -> None:
        """Wait until what was taken so far is within the rate."""
        if self._bytes_per_s is not None:
            now = asyncio.get_running_loop().time()
            self._free_at = max(self._free_at, now) + size / self._bytes_per_s
            await asyncio.sleep(self._free_at - now)
