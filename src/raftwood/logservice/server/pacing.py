"""Work that is done once a period, and sooner where somebody asks for it."""

import asyncio
from typing import Final

GATHER_S: Final = 0.01
"""Who asks within this time is served together with the first one."""
REST_SHARE: Final = 9
"""However often it is asked for, the work rests so many times as long as it took."""


class Pacing:
    """`wait` comes before each piece of work."""

    def __init__(self, period_ms: int) -> None:
        self._period_s = period_ms / 1000
        self._asked = asyncio.Event()
        self._began: float | None = None
        self._due = 0.0
        """When the period will be over."""

    def ask(self) -> None:
        """Let the work be done soon."""
        self._asked.set()

    async def wait(self) -> bool:
        """Until a period is over, or somebody asks; whether it is the former."""
        loop = asyncio.get_running_loop()
        if self._began is None:
            self._began = self._due = loop.time()
        took_s = loop.time() - self._began
        try:
            async with asyncio.timeout_at(self._due):
                await asyncio.sleep(REST_SHARE * took_s)
                await self._asked.wait()
                await asyncio.sleep(GATHER_S)
        except TimeoutError:
            is_over = True
        else:
            is_over = False
        self._asked.clear()
        self._began = loop.time()
        if is_over:
            self._due = self._began + self._period_s
        return is_over
