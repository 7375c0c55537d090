"""A store that ends lets others lead what it leads."""

import asyncio

import pytest
from tests.kits.raft.host_cluster import GROUP, Cluster, run_cluster


@pytest.mark.parametrize("seed", range(4))
def test_a_group_that_came_to_a_store_a_moment_ago_is_handed_over_too(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        simulation = cluster.simulation
        before = await cluster.wait_for_leader()
        store = before % 3 + 1
        host = cluster.hosts[store]
        transfer = asyncio.create_task(
            cluster.hosts[before].transfer_leadership(GROUP, store, timeout_ms=5_000)
        )
        # At once: no follower has answered the new leader yet.
        await simulation.wait_until(lambda: host.is_leading(GROUP), every_s=0.000_01)
        began = simulation.now
        await host.close(hand_over_ms=10_000)
        await cluster.until(lambda: cluster.leader() not in (0, store))
        assert simulation.now - began < 1.0, "an election timeout was waited for"
        await transfer

    run_cluster(scenario, seed=seed)
