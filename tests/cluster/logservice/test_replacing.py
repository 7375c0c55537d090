"""Stores that are lost, come back, or are drained: their replicas move, and nobody is harmed."""

import shutil
from pathlib import Path

from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.hakeeper.commands import ClusterView, DrainStore, StoreView
from raftwood.logservice.hakeeper.messages import OrderKind
from raftwood.raft.core import Role
from tests.kits.logservice.load import Load, cut_log
from tests.kits.logservice.processes import (
    LogProcesses,
    is_running_well,
    log_stores,
)
from tests.kits.running import run


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
    logs = [node.log.read_text() for node in stores.nodes.values() if node.log.exists()]
    assert any(f'"kind":"{OrderKind.ADD_LEARNER.value}"' in text for text in logs)


async def one_is_lost_for_good(stores: LogProcesses, load: Load) -> None:
    """It is replaced, and no zombie when it returns: HAKeeper, too, goes on without it."""
    await stores.kill(3)
    await stores.start(4, joins=True)
    await are_taken_over(stores, 1, 2, 4)
    await load.goes_on()
    returned = stores.nodes[3]
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
    assert len(returned.told("role", role=Role.CANDIDATE.value)) == stood
    await load.goes_on()


async def one_is_drained(stores: LogProcesses, load: Load) -> None:
    """The one that returned, and is empty, takes its place."""
    await stores.keeper.command(DrainStore(4, is_draining=True))
    await are_taken_over(stores, 1, 2, 3)
    await stores.seen("a store that is empty", lambda view: not store_of(view, 4).replicas)
    await load.goes_on()
    await stores.kill(4)


async def one_loses_its_disk(stores: LogProcesses, load: Load) -> None:
    """It has forgotten what it acknowledged: under its old number nobody listens to it."""
    await stores.kill(3)
    shutil.rmtree(stores.nodes[3].folder)
    stores.expected_errors = ("refused by a store", "replica is damaged")
    await stores.start(3)
    told = await stores.alarm("another data folder")
    assert "raftwood logservice start --join" in told
    assert "raftwood cluster forget 3" in told
    await load.goes_on()
    await stores.alarm("shard 1 has 2 voters, and wants 3")
    await stores.seen("a voter less", lambda view: not has_voter(view, 3))
    await stores.kill(3)
    await stores.start(5, joins=True)
    await are_taken_over(stores, 1, 2, 5)
    await load.goes_on()


async def all_restart(stores: LogProcesses, client: AsyncLogClient) -> None:
    """Snapshots taken after the changes hold them; the log before them is gone by then."""
    members = (1, 2, 5)
    await cut_log(client, [stores.nodes[store] for store in members])
    await stores.kill(*members)
    await stores.start(1, 2)
    await stores.start(5, joins=True)
    assert are_members(await stores.runs(), *members)
    info = await client.info()
    assert info.voters == members
    assert not info.learners
    await client.append(b"it goes on")


def test_replicas_of_stores_that_are_lost_drained_and_wiped_move_and_nobody_is_harmed(
    tmp_path: Path,
) -> None:
    # Nothing moves for the sake of balance: who returns stays empty.
    settings = {"hakeeper.moves_every_ticks": 1_000_000}

    async def body() -> None:
        async with log_stores(tmp_path, later=2, settings=settings) as stores:
            await stores.start()
            await stores.runs()
            client = await stores.client()
            async with Load([client], [client]) as load:
                await load.goes_on()
                await one_is_lost_for_good(stores, load)
                await one_is_drained(stores, load)
                await one_loses_its_disk(stores, load)
            assert not load.unknown
            print(await load.check(client))
            await all_restart(stores, client)

    run(body())
