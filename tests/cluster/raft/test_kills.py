"""Stores are killed, paused and stopped while clients write; nothing acked is missing."""

import signal
import time
from pathlib import Path

from tests.kits.raft.cluster import STORES
from tests.kits.raft.scene import Scene, scene
from tests.kits.running import run


def others_than(leader: int) -> list[int]:
    return [store for store in STORES if store != leader]


async def kill_and_restart(at: Scene, what: str, *stores: int) -> None:
    began = time.monotonic()
    for store in stores:
        at.cluster.nodes[store].signal(signal.SIGKILL)
    for store in stores:
        await at.cluster.nodes[store].ended()
    if len(stores) == 1:
        await at.answered_again(f"kill -9 of {what}", began)
        await at.cluster.restart(*stores)
    else:
        await at.cluster.restart(*stores)
        print(f"restarted after {time.monotonic() - began:.2f} s")
        await at.answered_again(f"kill -9 of {what}", began)
    for store in stores:
        await at.caught_up(store)


def test_nothing_acked_is_missing_after_stores_were_killed(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path) as at:
            leader = await at.cluster.leader(1)
            await kill_and_restart(at, "a leader", leader)
            leader = await at.cluster.leader(1)
            await kill_and_restart(at, "a follower", *others_than(leader)[:1])
            leader = await at.cluster.leader(2)
            await kill_and_restart(at, "two followers", *others_than(leader))
            await kill_and_restart(at, "all stores", *STORES)
            leader = await at.cluster.leader(3)
            await kill_and_restart(at, "a leader and a follower", leader, *others_than(leader)[:1])
            leader = await at.cluster.leader(1)
            await kill_and_restart(at, "a leader", leader)

    run(body())
