"""The network between stores stalls, breaks and is slow while clients write."""

import time
from pathlib import Path

import pytest

from tests.kits.raft.cluster import STORES
from tests.kits.raft.node import BUSY_GROUPS
from tests.kits.raft.scene import Scene, scene
from tests.kits.running import run

pytestmark = pytest.mark.slow

_LATENCY_S = 0.02


async def heal(at: Scene, store: int) -> None:
    healed = time.monotonic()
    at.proxies.heal()
    await at.answered_again("healed", healed)
    await at.caught_up(store)
    print(f"store {store} has caught up after {time.monotonic() - healed:.2f} s")


async def stall_leader(at: Scene) -> None:
    await at.cluster.let_lead(1)
    began = time.monotonic()
    at.proxies.isolate(1)
    await at.answered_again("stall of the leader's network", began)
    await heal(at, 1)


async def stall_one_way(at: Scene) -> None:
    """The leader is not heard any more, but hears."""
    await at.cluster.let_lead(2)
    began = time.monotonic()
    at.proxies.stall(2, 1)
    at.proxies.stall(2, 3)
    await at.answered_again("one-way stall, the leader is not heard", began)
    await heal(at, 2)
    await at.cluster.let_lead(2)
    began = time.monotonic()
    at.proxies.stall(1, 2)
    at.proxies.stall(3, 2)
    await at.answered_again("one-way stall, the leader hears nothing", began)
    await heal(at, 2)


async def stall_one_link(at: Scene) -> None:
    """Two stores do not reach one another; the third one reaches both."""
    await at.cluster.let_lead(3)
    began = time.monotonic()
    at.proxies.stall(3, 1)
    at.proxies.stall(1, 3)
    await at.answered_again("stall between the leader and one follower", began)
    await at.load.for_a_while(1.0)
    terms = {
        group: max(each.term for each in await at.cluster.statuses(group)) for group in BUSY_GROUPS
    }
    await at.load.for_a_while(1.0)
    for group in BUSY_GROUPS:
        statuses = await at.cluster.statuses(group)
        assert max(each.term for each in statuses) <= terms[group] + 1, "elections without end"
    await heal(at, 1)


async def reset_connections(at: Scene) -> None:
    for store in STORES:
        began = time.monotonic()
        at.proxies.reset(store)
        await at.answered_again(f"reset of all connections to store {store}", began)


async def slow_down(at: Scene) -> None:
    began = time.monotonic()
    at.proxies.latency_s = _LATENCY_S
    await at.answered_again("latency", began)
    await at.load.for_a_while(0.5)
    at.proxies.latency_s = 0.0


def test_nothing_acked_is_missing_after_the_network_failed(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, with_proxies=True) as at:
            for fault in (
                stall_leader,
                stall_one_way,
                stall_one_link,
                reset_connections,
                slow_down,
            ):
                await fault(at)

    run(body())
