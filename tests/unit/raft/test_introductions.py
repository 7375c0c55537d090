"""Stores hear one another in whatever order they learn of each other."""

import asyncio

from tests.kits.raft.host_cluster import GROUP, Cluster, Lines, address, run_cluster, write

from raftwood.raft.membership import MemberAction, MemberStep


def test_a_store_that_starts_its_group_late_hears_those_that_came_before() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.groups = ()
        cluster.start(1, 2, 3)
        await cluster.until(lambda: len(cluster.hosts) == 3)
        for store in (1, 2, 3):
            # Whoever has the group has dialled the others and told them who it is.
            await asyncio.sleep(3.0)
            await cluster.hosts[store].start_group(GROUP, Lines, members=cluster.members)
        await cluster.wait_for_leader()
        async with cluster.client() as client:
            await write(client, 20)
        assert len(await cluster.agree(1, 2, 3)) == 20

    run_cluster(scenario)


def test_a_store_that_learns_its_own_address_last_is_known_to_all() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        cluster.start(4, joins=True)
        leader = await cluster.wait_for_leader()
        away = next(store for store in (1, 2, 3) if store != leader)
        network = cluster.simulation.network
        async with cluster.client(1, 2, 3, 4) as client:
            await write(client, 20)
            # A snapshot tells the fourth of the three, whom it calls, but nothing of itself.
            await client.admin.snapshot(GROUP, store=leader)
            network.partition([f"s{away}"], [f"s{each}" for each in (1, 2, 3) if each != away])
            steps = [MemberStep(MemberAction.ADD_VOTER, 4, address(4))]
            await client.admin.change_members(GROUP, steps)
            await asyncio.sleep(1.0)
            await client.admin.transfer(GROUP, 4)
            await write(client, 20, start=20)
            assert len(await cluster.agree(1, 2, 3, 4)) == 40

    run_cluster(scenario)
