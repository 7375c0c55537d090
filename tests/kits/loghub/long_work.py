"""`CountedWork`: a gateway's work on large bodies, and the threads in which it was done."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.long_work import LongWork


class CountedWork(LongWork):
    """In threads, as that of a real environment."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self._compute = self._run

    async def _run(self, work: Callable[[], Any]) -> Any:
        def run() -> Any:
            self.threads.append(threading.get_ident())
            return work()

        return await asyncio.to_thread(run)

    @property
    def count(self) -> int:
        """Of pieces of work; none of them was done on the loop that asks."""
        assert threading.get_ident() not in self.threads
        return len(self.threads)


def count_long_work(gateway: Gateway) -> CountedWork:
    """Of a gateway from now on."""
    gateway.long_work = CountedWork()
    return gateway.long_work
