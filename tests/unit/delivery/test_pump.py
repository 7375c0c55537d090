"""The turns of a sender's rules, on both event loops."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from raftwood.delivery.pump import NEVER, Pump

Run = Callable[[Coroutine[Any, Any, None]], None]


class Turns:
    """Counts them, and says when the next one is due."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.due = NEVER

    def __call__(self, now: float) -> float:
        self.times.append(now)
        due, self.due = self.due, NEVER
        return due


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_events_share_a_turn_and_the_next_one_comes_when_it_is_due(run: Run) -> None:
    async def body() -> None:
        turns = Turns()
        pump = Pump(turns)
        turns.due = asyncio.get_running_loop().time() + 0.02
        due = turns.due
        for _ in range(3):
            pump.soon()
        assert pump.is_scheduled
        await asyncio.sleep(0)
        assert len(turns.times) == 1
        async with asyncio.timeout(60):
            while len(turns.times) < 2:  # noqa: ASYNC110  the loop's timer is what is tested
                await asyncio.sleep(0.005)
        assert turns.times[1] >= due - 0.005
        pump.close()

    run(body())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_timer_that_is_due_at_once_can_be_set_again_before_it_fires(run: Run) -> None:
    """uvloop answers less than half a millisecond with a handle that knows no time."""

    async def body() -> None:
        loop = asyncio.get_running_loop()
        turns = Turns()
        pump = Pump(turns)
        for early in (0.0001, 0.0, -1.0):
            turns.due = loop.time() + early
            pump.run()
        async with asyncio.timeout(60):
            while len(turns.times) < 4:  # noqa: ASYNC110  the loop's timer is what is tested
                await asyncio.sleep(0.001)
        pump.close()

    run(body())


def test_no_turn_comes_after_the_end() -> None:
    async def body() -> None:
        turns = Turns()
        pump = Pump(turns)
        turns.due = asyncio.get_running_loop().time() + 0.001
        pump.run()
        pump.soon()
        pump.close()
        pump.soon()
        pump.run()
        await asyncio.sleep(0.01)
        assert len(turns.times) == 1

    asyncio.run(body())
