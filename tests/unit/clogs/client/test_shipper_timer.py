"""A shipper's timer, on both event loops: uvloop's for a moment that has come knows no time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from raftwood.clogs.client.shipper import AsyncShipper
from raftwood.disk.real_environment import real_environment
from tests.kits.clogs.ring import ACCESS, Ring, StaticSource, settings_of


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_timer_that_is_due_at_once_can_be_set_again_before_it_fires(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        with real_environment() as environment:
            ring = Ring(environment)
            await ring.start("log-0")
            try:
                source = StaticSource(ring.configuration())
                async with (
                    asyncio.timeout(60),
                    await AsyncShipper.start(environment, settings_of(), ACCESS, source) as shipper,
                ):
                    shipper._wake_at(loop.time())
                    shipper._wake_at(loop.time() + 0.01)
                    await shipper.send("a.log", [b"one"])
                assert ring.storage.lines("a.log") == [b"one"]
            finally:
                await ring.close()

    run(body())
