"""A follower that takes a living leader for gone changes nothing."""

import asyncio

from tests.kits.raft.host_cluster import GROUP, Cluster, run_cluster, write


def test_one_follower_that_is_mistaken_again_and_again_disturbs_nobody() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 10)
            leader = await cluster.wait_for_leader()
            term = cluster.hosts[leader].status(GROUP).term
            mistaken = next(store for store in (1, 2, 3) if store != leader)
            for round_number in range(60):
                cluster.hosts[mistaken]._incoming.replace_leader(leader)
                await asyncio.sleep(0.05 + 0.01 * (round_number % 7))
                await write(client, 1, start=10 + round_number)
        assert cluster.hosts[leader].is_leading(GROUP)
        assert cluster.hosts[leader].status(GROUP).term == term

    run_cluster(scenario)


def test_all_followers_that_are_mistaken_elect_another_leader_and_lose_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 10)
            for round_number in range(10):
                leader = await cluster.wait_for_leader()
                for store in (1, 2, 3):
                    if store != leader:
                        cluster.hosts[store]._incoming.replace_leader(leader)
                await asyncio.sleep(0.3)
                await write(client, 5, start=10 + 5 * round_number)
        lines = await cluster.agree(1, 2, 3)
        assert lines == [b"line %d" % number for number in range(60)]

    run_cluster(scenario)
