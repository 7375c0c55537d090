"""Work once a period, and sooner where somebody asks."""

import asyncio

from raftwood.logservice.server.heartbeats import REST_SHARE, Pacer
from tests.kits.running import in_virtual_time


def test_the_first_piece_is_due_at_once_and_the_next_a_period_later() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        pacing = Pacer(50)
        began = loop.time()
        assert await pacing.wait()
        assert loop.time() - began < 0.04
        assert await pacing.wait()
        assert loop.time() - began >= 0.045

    in_virtual_time(scenario())


def test_who_asks_does_not_wait_for_the_period() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        pacing = Pacer(60_000)
        assert await pacing.wait()
        began = loop.time()
        loop.call_later(0.02, pacing.ask)
        assert not await pacing.wait()
        assert 0.015 < loop.time() - began < 10

    in_virtual_time(scenario())


def test_asking_does_not_put_the_period_off() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        pacing = Pacer(150)
        assert await pacing.wait()
        began = loop.time()
        asked = 0
        while True:
            pacing.ask()
            if await pacing.wait():
                break
            asked += 1
        assert asked > 1
        assert 0.14 <= loop.time() - began < 10

    in_virtual_time(scenario())


def test_work_that_takes_long_is_not_done_all_the_time() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        pacing = Pacer(60_000)
        assert await pacing.wait()
        await asyncio.sleep(0.02)  # the work
        ended = loop.time()
        pacing.ask()
        assert not await pacing.wait()
        assert loop.time() - ended >= 0.02 * REST_SHARE

    in_virtual_time(scenario())
