"""Running a test's coroutine on a real loop, so that a task left behind fails the test."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from raftwood.testing import simulate

Result = TypeVar("Result")

WAIT_S_MAX = 60


class SkippingLoop(asyncio.SelectorEventLoop):
    """A real loop whose clock the test moves on: for timeouts on real sockets.

    With timeouts of hours, they end when the test says so, and never because a machine is slow.
    """

    skipped_s = 0.0

    def time(self) -> float:
        return super().time() + self.skipped_s

    async def skip(self, seconds: float) -> None:
        """What is due meanwhile happens, and some turns of the loop follow from that."""
        self.skipped_s += seconds
        await asyncio.sleep(0.01)


def run(
    main: Coroutine[Any, Any, Result],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> Result:
    """As `asyncio.run`, but tasks that are still there at the end are a failure."""

    async def guarded() -> Result:
        result = await main
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, f"tasks left behind: {left}"
        return result

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(guarded())


def in_virtual_time(main: Coroutine[Any, Any, Result]) -> Result:
    """Run where time passes only while nobody has anything to do: no real socket or thread."""
    return simulate(1, lambda _: main).result


async def until(condition: Callable[[], object]) -> None:
    """For what is seen from outside alone, so that it cannot be awaited."""
    async with asyncio.timeout(WAIT_S_MAX):
        while not condition():  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.002)
