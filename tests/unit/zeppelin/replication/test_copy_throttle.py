"""Copies are let through as clients allow, as the loop sees it."""

import asyncio
import time

from raftwood.zeppelin.node.data_server import ClientLatency
from raftwood.zeppelin.replication.copy_pace import CopyLimits, CopyThrottle
from tests.kits.running import in_virtual_time, run

MB = 1 << 20
LIMITS = CopyLimits(latency_ms=10, bytes_per_s_min=4 * MB, bytes_per_s_max=64 * MB)


async def copied(throttle: CopyThrottle, size: int) -> float:
    """How long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with throttle.copying():
        for _ in range(size // (64 << 10)):
            await throttle.turn(64 << 10)
    return loop.time() - began


def test_a_copy_is_slow_while_clients_wait_and_fast_where_there_are_none() -> None:
    async def main() -> None:
        waited: list[float | None] = [None]
        throttle = CopyThrottle(LIMITS, lambda: waited[0])
        assert await copied(throttle, 8 * MB) < 3
        assert throttle.pace.bytes_per_s > 8 * MB
        waited[0] = 1_000.0
        await copied(throttle, 14 * MB)
        assert throttle.pace.bytes_per_s == LIMITS.bytes_per_s_min
        throttle.close()

    in_virtual_time(main())


def test_a_loop_that_is_held_up_counts_as_much_as_clients_that_wait() -> None:
    async def main() -> None:
        throttle = CopyThrottle(LIMITS, lambda: 0.0)
        with throttle.copying():
            # The pace is looked at from time to time, so that one stall may come between two looks.
            while throttle.pace.bytes_per_s > LIMITS.bytes_per_s_min:
                await throttle.turn(1)
                time.sleep(0.15)  # noqa: ASYNC251  that is what is to be noticed
                await asyncio.sleep(0.005)
        throttle.close()

    run(main())


def test_how_long_clients_waited_is_told_once() -> None:
    latency = ClientLatency()
    assert latency.take_ms() is None
    latency.is_asked = True
    assert latency.take_ms() == 0
    latency.waited(0.002)
    latency.waited(0.004)
    assert latency.take_ms() == 3
    assert latency.take_ms() is None
