"""Stores that are lost, come back, or are drained: their replicas move, and nobody is harmed."""

import asyncio
import shutil
import time
from pathlib import Path

from raftwood.logservice.hakeeper.commands import DrainStore
from raftwood.logservice.hakeeper.orders import OrderKind
from raftwood.logservice.hakeeper.views import ClusterView, StoreView
from raftwood.raft.core import Role
from tests.kits.logservice.load import Load, cut_log
from tests.kits.logservice.processes import (
    LogProcesses,
    is_running_well,
    log_stores,
)
from tests.kits.running import run

_SILENCE_S_MAX = 15.0
"""An election on a machine that is busy with much else."""


def are_members(view: ClusterView, *stores: int) -> bool:
    return is_running_well(view) and all(shard.voters == stores for shard in view.shards)


def has_voter(view: ClusterView, store: int) -> bool:
    return any(store in shard.voters for shard in view.shards)


def store_of(view: ClusterView, number: int) -> StoreView:
    return next(each for each in view.stores if each.store == number)


async def are_taken_over(stores: LogProcesses, *members: int) -> None:
    """All shards get these members, the new one as a learner first."""
    await stores.seen(f"members {members}", lambda view: are_members(view, *members))
    # A learner is one for a moment only: what the leaders were ordered tells for sure.
    logs = [node.log.read_text() for node in stores.nodes.values()]
    assert any(f'"kind":"{OrderKind.ADD_LEARNER.value}"' in text for text in logs)


def test_a_store_that_is_lost_for_good_is_replaced_and_no_zombie_when_it_returns(
    tmp_path: Path,
) -> None:
    """The returning store was a member of HAKeeper, which goes on without it."""

    # Nothing moves for the sake of balance: who returns stays empty.
    settings = {"hakeeper.log_shards": 2, "hakeeper.moves_every_ticks": 1_000_000}

    async def body() -> None:
        async with log_stores(tmp_path, later=1, settings=settings) as stores:
            await stores.start()
            await stores.runs()
            client, other = await stores.client(), await stores.client()
            async with Load([client, other], [other]) as load:
                await load.goes_on()
                began = time.monotonic()
                await stores.kill(3)
                await stores.start(4, joins=True)
                await are_taken_over(stores, 1, 2, 4)
                await load.goes_on()
                print(f"replaced after {time.monotonic() - began:.1f} s")

                returned, began = stores.nodes[3], time.monotonic()
                stood = len(returned.told("role", role=Role.CANDIDATE.value))
                await stores.start(3)
                view = await stores.seen(
                    "the returned store without replicas",
                    lambda view: (
                        store_of(view, 3).is_live
                        and store_of(view, 3).silent_ticks < 3
                        and not store_of(view, 3).replicas
                    ),
                )
                assert all(shard.voters == (1, 2, 4) for shard in view.shards)
                assert load.longest_silence_s(began) < _SILENCE_S_MAX
                assert len(returned.told("role", role=Role.CANDIDATE.value)) == stood
            print(await load.check(client))

    run(body())


def test_a_drained_store_is_left_and_the_members_are_right_after_all_restarted(
    tmp_path: Path,
) -> None:
    """Snapshots taken after the change hold it; the log before it is gone by then."""

    async def body() -> None:
        async with log_stores(tmp_path, later=1) as stores:
            await stores.start()
            await stores.start(4, joins=True)
            await stores.runs()
            client = await stores.client()
            drained = await stores.leader()
            members = [each for each in stores.nodes if each != drained]
            async with Load([client]) as load:
                await load.goes_on()
                began = time.monotonic()
                await stores.keeper.command(DrainStore(drained, is_draining=True))
                await are_taken_over(stores, *members)
                await stores.seen(
                    "a store that is empty", lambda view: not store_of(view, drained).replicas
                )
                await load.goes_on()
                silence_s = load.longest_silence_s(began)
                print(f"drained in {time.monotonic() - began:.1f} s, silent for {silence_s:.2f} s")
                assert silence_s < _SILENCE_S_MAX
                assert not load.unknown
            print(await load.check(client))

            await cut_log(client, [stores.nodes[store] for store in members])
            await stores.kill(*stores.nodes)
            await stores.start(1, 2, 3)
            await stores.start(4, joins=True)
            view = await stores.runs()
            assert are_members(view, *members)
            info = await client.info()
            assert info.voters == tuple(members)
            assert not info.learners
            await client.append(b"it goes on")

    run(body())


def test_a_store_that_lost_its_disk_is_replaced_by_one_with_a_new_number(tmp_path: Path) -> None:
    """It has forgotten what it acknowledged: under its old number nobody listens to it."""

    async def body() -> None:
        async with log_stores(tmp_path, later=1) as stores:
            await stores.start()
            await stores.runs()
            client = await stores.client()
            async with Load([client], [client]) as load:
                await load.goes_on()
                await stores.kill(3)
                shutil.rmtree(stores.nodes[3].folder)
                await stores.start(3)
                stores.expected_errors = ("refused by a store", "replica is damaged")
                assert "joins with a new number" in await stores.alarm("another data folder")
                await load.goes_on()
                await stores.alarm("shard 1 has 2 voters, and wants 3")
                await stores.seen("a voter less", lambda view: not has_voter(view, 3))
                await asyncio.sleep(1.0)
                assert not has_voter(await stores.keeper.describe(), 3)
                await stores.kill(3)
                await stores.start(4, joins=True)
                await are_taken_over(stores, 1, 2, 4)
                await load.goes_on()
            assert not load.unknown
            print(await load.check(client))

    run(body())
