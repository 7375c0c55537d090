"""The client of raft groups: how it finds stores, the leader, and stores that came later."""

import asyncio

import pytest
from tests.unit.raft.host_cluster import CLIENT, GROUP, Cluster, address, run_cluster, write

from raftwood.base.errors import Unavailable
from raftwood.raft.host.membership import MemberAction, MemberStep
from raftwood.raft.remote.discovery import discover


def test_a_client_learns_of_a_leader_that_was_added_after_it_was_made() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client, cluster.client() as operator:
            await write(client, 20)
            cluster.start(4, joins=True)
            step = MemberStep(MemberAction.ADD_VOTER, 4, address(4))
            await operator.admin.change_members(GROUP, [step])
            await operator.admin.transfer(GROUP, 4)
            future = client.propose(GROUP, b"to the new one", timeout_ms=10_000)
            await future
            assert cluster.leader() == 4

    run_cluster(scenario)


def test_the_leader_is_found_at_once_where_other_stores_are_down() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        leader = await cluster.wait_for_leader()
        away = next(store for store in (1, 2, 3) if store != leader)
        cluster.machines[away].kill()
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with cluster.client() as client:
            assert (await client.admin.leader_status(GROUP)).store == leader
        assert loop.time() - began < 1.0

    run_cluster(scenario, seed=3)


def test_stores_are_found_by_their_addresses_and_tell_of_the_others() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader()
        everyone = {store: address(store) for store in (1, 2, 3)}
        environment = cluster.simulation.environment
        assert await discover(environment, CLIENT, [address(2)], group=GROUP) == everyone
        with pytest.raises(Unavailable, match="no store answers"):
            await discover(environment, CLIENT, ["s1:9999"], group=GROUP)

    run_cluster(scenario)


def test_a_store_that_was_added_can_say_where_all_members_are() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 20)
            cluster.start(4, joins=True)
            step = MemberStep(MemberAction.ADD_VOTER, 4, address(4))
            await client.admin.change_members(GROUP, [step])
            await cluster.agree(1, 2, 3, 4)
        everyone = {store: address(store) for store in (1, 2, 3, 4)}
        assert cluster.hosts[4].status(GROUP).addresses == everyone
        await cluster.stop(4)
        cluster.start(4, joins=True)
        await cluster.agree(1, 2, 3, 4)
        assert cluster.hosts[4].status(GROUP).addresses == everyone

    run_cluster(scenario)
