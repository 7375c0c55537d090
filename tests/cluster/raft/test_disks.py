"""One store's disk is full, fails or is slow while clients write."""

import time
from pathlib import Path

import pytest

from raftwood.disk.real_environment import EXIT_CODE_ENDED
from tests.kits.processes import fill, in_small_disk, injected, seen_inside
from tests.kits.raft.node import BUSY_GROUPS
from tests.kits.raft.scene import ANSWER_S_MAX, Scene, scene
from tests.kits.running import run

_DISK_KIB = 8 << 10
_FULL_S_MAX = 120.0
"""Until the segment that was ready when the disk filled up is full as well."""
_SLOW_S = 1.5
"""How long each sync of one follower takes."""


async def fill_leader(at: Scene) -> None:
    await at.cluster.let_lead(1)
    began = time.monotonic()
    ballast = fill(seen_inside(at.cluster.nodes[1]))
    while 1 in [await at.cluster.leader(group) for group in BUSY_GROUPS]:
        await at.load.for_a_while(0.1)
        assert time.monotonic() - began < _FULL_S_MAX
    print(f"the full store leads no more after {time.monotonic() - began:.2f} s")
    await at.answered_again("handed over", time.monotonic())
    silence_s = at.load.longest_silence_s(began)
    print(f"the longest silence was {silence_s:.2f} s")
    assert silence_s < ANSWER_S_MAX
    ballast.unlink()
    room = time.monotonic()
    await at.caught_up(1)
    print(f"with room again it has caught up after {time.monotonic() - room:.2f} s")
    await at.cluster.let_lead(1)
    await at.answered_again("leads again", time.monotonic())


async def fill_majority(at: Scene) -> None:
    """Nobody is left to hand over to: writes wait for room."""
    began = time.monotonic()
    ballasts = [fill(seen_inside(at.cluster.nodes[store])) for store in (1, 2)]
    while at.load.longest_silence_s(time.monotonic() - 1.0) < 1.0:
        await at.load.for_a_while(0.1)
        assert time.monotonic() - began < _FULL_S_MAX
    for ballast in ballasts:
        ballast.unlink()
    await at.answered_again("two full disks have room again", time.monotonic())


@pytest.mark.needs("tmpfs")
def test_a_leader_whose_disk_is_full_hands_over_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    folders = {store: tmp_path / f"store-{store}" for store in (1, 2)}
    for folder in folders.values():
        folder.mkdir()

    async def body() -> None:
        wrappers = {store: in_small_disk(folder, _DISK_KIB) for store, folder in folders.items()}
        async with scene(tmp_path, wrappers=wrappers) as at:
            await fill_leader(at)
            await fill_majority(at)

    run(body())


async def fail_to_sync(at: Scene) -> None:
    await at.cluster.let_lead(1)
    node = at.cluster.nodes[1]
    assert await node.ended() == EXIT_CODE_ENDED
    await at.answered_again("sync error at the leader", time.monotonic())
    assert "DataSync failed: [Errno 5]" in node.log.read_text()
    at.expected_endings = 1
    await at.cluster.restart(1)
    await at.caught_up(1)


async def sync_slowly(at: Scene) -> None:
    """Nobody waits for a follower: most answers come long before it has synced."""
    await at.cluster.let_lead(1)
    await at.cluster.nodes[3].kill()
    slow = injected(f"fdatasync:delay_enter={int(_SLOW_S * 1e6)}:when=30+")
    await at.cluster.restart(3, wrapper=slow)
    began = time.monotonic()
    await at.answered_again("slow disk at a follower", began)
    await at.load.for_a_while(_SLOW_S)
    median_s = at.load.median_s(began, time.monotonic())
    print(f"p50 {median_s * 1000:.2f} ms with a follower that takes {_SLOW_S} s")
    assert median_s < _SLOW_S
    await at.cluster.nodes[3].kill()
    await at.cluster.restart(3)
    await at.caught_up(3)


@pytest.mark.needs("strace")
def test_a_store_whose_sync_fails_ends_itself_and_one_that_syncs_slowly_holds_nobody_up(
    tmp_path: Path,
) -> None:
    # From then on: the first may be that of a snapshot, which is dropped and taken again.
    fault = "fdatasync:error=EIO:when=400+"

    async def body() -> None:
        async with scene(tmp_path, wrappers={1: injected(fault)}) as at:
            await fail_to_sync(at)
            await sync_slowly(at)

    run(body())
