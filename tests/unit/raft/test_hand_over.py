"""Leadership that goes to another store, and what that one does at once."""

import asyncio

import pytest
from tests.kits.raft.host_cluster import GROUP, Cluster, run_cluster

from raftwood.base.errors import DeadlineExceeded
from raftwood.raft.core import ProposalDropped
from raftwood.raft.membership import MemberAction, MemberStep
from raftwood.testing.disk import DiskProfile


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


@pytest.mark.parametrize("seed", range(4))
def test_a_leader_changes_members_before_it_has_applied_what_its_predecessor_left(
    seed: int,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        before = await cluster.wait_for_leader()
        store = before % 3 + 1
        host = cluster.hosts[store]
        transfer = asyncio.create_task(
            cluster.hosts[before].transfer_leadership(GROUP, store, timeout_ms=5_000)
        )
        await cluster.simulation.wait_until(lambda: host.is_leading(GROUP), every_s=0.000_01)
        step = MemberStep(MemberAction.REMOVE, before)
        left = await host.change_members(GROUP, [step], timeout_ms=5_000)
        assert sorted(left.voters) == sorted({1, 2, 3} - {before})
        await asyncio.gather(transfer, return_exceptions=True)

    run_cluster(scenario, seed=seed)


def test_a_group_takes_proposals_between_attempts_to_hand_it_over() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        before = await cluster.wait_for_leader()
        store = before % 3 + 1
        disk = cluster.machines[store].disk
        usual = disk.profile
        disk.profile = DiskProfile(sync_s=(15.0, 15.0))
        host = cluster.hosts[before]
        await host.propose(GROUP, b"not yet on the slow disk", timeout_ms=5_000)
        transfer = host.transfer_leadership(GROUP, store, timeout_ms=10_000)
        transferring = asyncio.create_task(transfer)
        taken = refused = 0
        while not transferring.done():
            await asyncio.sleep(0.05)
            try:
                await host.propose(GROUP, b"another one", timeout_ms=5_000)
                taken += 1
            except ProposalDropped:
                refused += 1
        disk.profile = usual
        assert isinstance(transferring.exception(), DeadlineExceeded)
        assert refused > 10
        assert taken > refused // 2

    run_cluster(scenario, seed=1)


@pytest.mark.parametrize("seed", range(4))
def test_a_store_leads_that_cannot_be_made_to_at_once(seed: int) -> None:
    """An attempt lasts for an election timeout; a disk that stalls may take longer than one."""

    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        before = await cluster.wait_for_leader()
        store = before % 3 + 1
        disk = cluster.machines[store].disk
        usual = disk.profile
        disk.profile = DiskProfile(sync_s=(2.5, 2.5))
        async with cluster.client() as client:
            await client.propose(GROUP, b"not yet on the slow disk", timeout_ms=5_000)
        transfer = cluster.hosts[before].transfer_leadership(GROUP, store, timeout_ms=20_000)
        transferring = asyncio.create_task(transfer)
        await asyncio.sleep(3)
        disk.profile = usual
        await transferring
        await cluster.until(lambda: cluster.leader() == store)

    run_cluster(scenario, seed=seed)
