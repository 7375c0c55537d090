"""How much is done in one turn of the event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from raftwood.testing.loop import SimulatedLoop


class Most:
    """The most that a counter grew by in one turn."""

    def __init__(self, count: Callable[[], int]) -> None:
        self.in_a_turn = 0
        self._count = count
        self._before = count()

    def look(self) -> None:
        now = self._count()
        self.in_a_turn = max(self.in_a_turn, now - self._before)
        self._before = now


@asynccontextmanager
async def counting(count: Callable[[], int]) -> AsyncIterator[Most]:
    """Look at a counter in each turn of the running loop, a simulated one or a real one."""
    loop, most = asyncio.get_running_loop(), Most(count)
    if isinstance(loop, SimulatedLoop):
        run_turn = loop._run_turn

        def run_and_look() -> None:
            run_turn()
            most.look()

        loop._run_turn = run_and_look  # type: ignore[method-assign]
        try:
            yield most
        finally:
            loop._run_turn = run_turn  # type: ignore[method-assign]
        return

    async def look_on() -> None:
        while True:
            await asyncio.sleep(0)
            most.look()

    looking = loop.create_task(look_on())
    try:
        yield most
    finally:
        looking.cancel()
        await asyncio.wait([looking])
