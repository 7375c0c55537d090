"""Readers that wait until a bookie hears of more confirmed entries."""

import asyncio
from typing import Final

from raftwood.base.errors import Overloaded

WAIT_MS_MAX: Final = 60_000


class Waits:
    """By ledger; each ends with the news it waits for, or with its time."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._waiting: dict[int, dict[asyncio.Future[None], int]] = {}
        self.count = 0

    async def wait(self, ledger: int, *, after: int, timeout_ms: int) -> None:
        """Until more than `after` is confirmed, as `heard` tells it, or the time is over."""
        if self.count >= self._count_max:
            raise Overloaded(f"{self.count} readers wait at this bookie already: try again later")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(min(timeout_ms, WAIT_MS_MAX) / 1000, _resolve, future)
        waiting = self._waiting.setdefault(ledger, {})
        waiting[future] = after
        self.count += 1
        try:
            await future
        finally:
            timer.cancel()
            self.count -= 1
            del waiting[future]
            if not waiting and self._waiting.get(ledger) is waiting:
                del self._waiting[ledger]

    def heard(self, ledger: int, last_confirmed: int) -> None:
        """There is more to read."""
        waiting = self._waiting.get(ledger)
        if waiting is not None:
            for future, after in waiting.items():
                if last_confirmed > after:
                    _resolve(future)

    def close(self) -> None:
        """All waits are over."""
        for waiting in self._waiting.values():
            for future in waiting:
                _resolve(future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
