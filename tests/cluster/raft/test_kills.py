"""Stores are killed, and end in order, while clients write; nothing acked is missing."""

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
    if len(stores) == 1:  # the others go on without it
        await at.answered_again(f"kill -9 of {what}", began)
    await at.cluster.restart(*stores)
    await at.answered_again(f"kill -9 of {what}, which is back", time.monotonic())
    for store in stores:
        await at.caught_up(store)


async def end_in_order(at: Scene, store: int) -> None:
    """Whoever leads all groups ends, and others lead them."""
    await at.cluster.let_lead(store)
    began = time.monotonic()
    await at.cluster.nodes[store].end_well()
    await at.answered_again("SIGTERM of the leader, and its end", began)
    await at.cluster.restart(store)
    await at.caught_up(store)


def test_nothing_acked_is_missing_after_stores_were_killed_and_stopped(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path) as at:
            await kill_and_restart(at, "a leader", await at.cluster.leader(1))
            await kill_and_restart(at, "two followers", *others_than(await at.cluster.leader(2)))
            await kill_and_restart(at, "all stores", *STORES)
            await end_in_order(at, await at.cluster.leader(3))

    run(body())
