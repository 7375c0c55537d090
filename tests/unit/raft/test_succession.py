"""Another leader comes soon where the process of the last one is gone for certain."""

import pytest
from tests.kits.raft.host_cluster import GROUP, Cluster, run_cluster, write

from raftwood.base.errors import Unavailable
from raftwood.raft.core import ConfState
from raftwood.raft.quiesce import turn_of


@pytest.mark.parametrize("seed", range(5))
def test_a_killed_leader_is_replaced_long_before_its_silence_would_tell(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        leader = await cluster.wait_for_leader()
        async with cluster.client() as client:
            await write(client, 20)
        loop = cluster.simulation.loop
        began = loop.time()
        cluster.machines[leader].kill()
        await cluster.until(lambda: cluster.leader() not in (0, leader))
        election_s = cluster.settings.election_ticks * cluster.settings.tick_ms / 1000
        assert loop.time() - began < election_s * 0.6

    run_cluster(scenario, seed=seed)


def test_a_sleeping_group_whose_leader_is_killed_has_another_soon() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        leader = await cluster.wait_for_leader()
        await cluster.until(lambda: cluster.hosts[leader].status(GROUP).is_asleep)
        began = cluster.simulation.loop.time()
        cluster.machines[leader].kill()
        await cluster.until(lambda: cluster.leader() not in (0, leader))
        assert cluster.simulation.loop.time() - began < 0.6

    run_cluster(scenario)


def test_voters_take_turns_and_groups_begin_with_different_ones() -> None:
    members = ConfState(voters=(1, 2, 3), learners=(4,))
    assert [turn_of(store, members, lost=3, group=0) for store in (1, 2, 3, 4)] == [
        0,
        1,
        None,
        None,
    ]
    assert [turn_of(store, members, lost=3, group=1) for store in (1, 2)] == [1, 0]


def test_leadership_is_not_handed_to_a_store_that_is_gone() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        leader = await cluster.wait_for_leader()
        gone = next(store for store in (1, 2, 3) if store != leader)
        async with cluster.client() as client:
            await write(client, 1)
            cluster.machines[gone].kill()
            with pytest.raises(Unavailable, match="cannot be reached"):
                await client.admin.transfer(GROUP, gone)
            began = cluster.simulation.loop.time()
            await write(client, 1, start=1)
            assert cluster.simulation.loop.time() - began < 0.5

    run_cluster(scenario)
