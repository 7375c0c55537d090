"""A lane's attempts, and who follows a log that has ended."""

import asyncio

import pytest

from raftwood.base.backoff import Backoff
from raftwood.base.errors import Unavailable
from raftwood.delivery.lanes import LaneAttempts, successor
from raftwood.testing import Simulation, simulate

BACKOFF = Backoff(first_ms=1_000, longest_ms=4_000)


def _waits(name: str, count: int) -> list[float]:
    attempts, waits = LaneAttempts(name), []
    for _ in range(count):
        attempts.failed(BACKOFF, 100.0)
        waits.append(attempts.retry_at - 100.0)
    assert attempts.failures == count
    return waits


def test_waits_grow_up_to_a_bound_and_begin_anew_after_a_success() -> None:
    first, *others = _waits("a", 5)
    assert others == [2 * first, 4 * first, 4 * first, 4 * first]
    assert 0.5 <= first <= 1.0
    attempts = LaneAttempts("a")
    attempts.failed(BACKOFF, 7.0)
    attempts.recovered()
    assert (attempts.failures, attempts.retry_at) == (0, 0.0)
    attempts.failed(BACKOFF, 100.0)
    assert attempts.retry_at - 100.0 == first


def test_lanes_that_fail_together_do_not_come_again_together() -> None:
    assert len({_waits(f"lane {number}", 1)[0] for number in range(20)}) > 15


def test_a_successor_that_is_being_made_is_waited_for_but_not_for_ever() -> None:
    async def scenario(_: Simulation) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def after_a_second() -> str | None:
            return "shard 2" if loop.time() - began > 1.0 else None

        assert await successor(after_a_second, timeout_s=30, missing="no shard") == "shard 2"

        async def never() -> str | None:
            return None

        with pytest.raises(Unavailable, match="no shard takes it: is the logstore being deleted"):
            await successor(never, timeout_s=2.0, missing="no shard takes it")
        assert loop.time() - began < 5.0

    simulate(1, scenario)
