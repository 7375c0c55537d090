"""The client of raft groups: how it finds stores, the leader, and stores that came later."""

import asyncio
import gc
from functools import partial
from typing import Any

import pytest
from tests.kits.raft.host_cluster import CLIENT, GROUP, Cluster, address, run_cluster, write

from raftwood.base.errors import (
    ConnectionLost,
    DeadlineExceeded,
    NotLeader,
    PermissionDenied,
    Unavailable,
)
from raftwood.net.methods import HandlerEntry, Service
from raftwood.net.stores import discover
from raftwood.raft.admin import ask_members
from raftwood.raft.client import AsyncRaftClient
from raftwood.raft.client_protocol import HEARTBEAT, RENEW
from raftwood.raft.membership import MemberAction, MemberStep


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
        assert (
            await discover(environment, CLIENT, [address(2)], partial(ask_members, GROUP))
            == everyone
        )
        with pytest.raises(Unavailable, match="no store answers"):
            await discover(environment, CLIENT, ["s1:9999"], partial(ask_members, GROUP))

    run_cluster(scenario)


LATER = (RENEW, HEARTBEAT)


@pytest.mark.parametrize("are_old", [False, True])
def test_leases_and_heartbeats_reach_new_stores_and_those_of_the_first_release(
    are_old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those lack the methods that go before clients."""
    asked: list[str] = []
    add = Service._add

    def add_what_there_was(self: Service, entry: HandlerEntry) -> None:
        if are_old and entry.method in LATER:
            return
        handler, name = entry.handler, entry.method.name

        def noted(*arguments: Any) -> Any:
            asked.append(name)
            return handler(*arguments)

        add(self, HandlerEntry(entry.method, entry.mode, noted))

    monkeypatch.setattr(Service, "_add", add_what_there_was)

    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        leader = await cluster.wait_for_leader()
        async with cluster.client() as client:
            await client.renew(GROUP, b"alive", timeout_ms=10_000)
            told = await client.heartbeat(GROUP, b"", timeout_ms=10_000)
            assert told == await client.read(GROUP, b"", timeout_ms=10_000)
            await client.admin.transfer(GROUP, leader % 3 + 1)
            await client.renew(GROUP, b"alive again", timeout_ms=10_000)
        assert ("raft-propose" in asked) == are_old
        assert ("raft-renew" in asked) != are_old
        assert ("raft-heartbeat" in asked) != are_old
        with pytest.raises(ConnectionLost):
            await client.renew(GROUP, b"too late", timeout_ms=10_000)

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


def test_without_a_majority_the_operator_hears_that_nobody_leads() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        leader = await cluster.wait_for_leader()
        dead = [leader, next(store for store in (1, 2, 3) if store != leader)]
        for store in dead:
            cluster.machines[store].kill()
        await asyncio.sleep(5.0)
        async with cluster.client() as client:
            with pytest.raises(NotLeader, match="see that a majority of its stores runs"):
                await client.admin.leader_status(GROUP)
            with pytest.raises(DeadlineExceeded, match="see that a majority of its stores runs"):
                await client.propose(GROUP, b"in vain", timeout_ms=3_000)

    run_cluster(scenario)


def test_what_waits_for_an_answer_ends_when_the_client_is_closed() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client()
        waiting = [
            client.propose(GROUP, b"line", timeout_ms=30_000, exactly_once=exactly_once)
            for exactly_once in (True, False)
        ]
        await asyncio.sleep(1)
        late = client.propose(GROUP, b"line", timeout_ms=30_000)
        await client.close()
        for future in (*waiting, late):
            with pytest.raises(Unavailable, match="closed"):
                await asyncio.wait_for(future, 1)
        with pytest.raises(Unavailable, match="closed"):
            client.propose(GROUP, b"line", timeout_ms=30_000)

    run_cluster(scenario)


def test_commands_of_one_moment_have_each_its_own_time() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with cluster.client() as client:
            short = client.propose(GROUP, b"line 0", timeout_ms=500)
            long = client.propose(GROUP, b"line 1", timeout_ms=30_000)
            with pytest.raises(DeadlineExceeded):
                await asyncio.wait_for(short, 1)
            cluster.start(1, 2, 3)
            assert await long == b"1"

    run_cluster(scenario)


def test_a_command_without_a_session_finds_the_stores_that_have_the_group() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader()
        cluster.groups = ()
        cluster.start(4, joins=True)
        await cluster.until(lambda: 4 in cluster.hosts)
        async with cluster.client(1, 2, 3, 4) as client:
            await client.admin.status(GROUP, store=1)
            client._stores._leaders[GROUP] = 4
            answer = client.propose(GROUP, b"line", timeout_ms=10_000, exactly_once=False)
            assert await answer == b"1"

    run_cluster(scenario)


def test_late_words_of_a_store_do_not_displace_the_leader_that_was_found_meanwhile() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 20)
            stores = client._stores
            silent = stores.guess(GROUP)
            stores.try_another(GROUP, asked=silent)
            found = stores.guess(GROUP)
            assert found != silent
            # Two commands were on their way to the silent store; the second one is told later.
            stores.try_another(GROUP, asked=silent)
            stores.heard_of_leader(GROUP, silent, asked=silent)
            assert stores.guess(GROUP) == found
            stores.heard_of_leader(GROUP, silent, asked=found)
            assert stores.guess(GROUP) == silent

    run_cluster(scenario)


def test_a_client_may_look_at_a_group_and_not_change_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        leader = await cluster.wait_for_leader()
        addresses = {store: address(store) for store in (1, 2, 3)}
        async with AsyncRaftClient(cluster.simulation.environment, CLIENT, addresses) as client:
            assert (await client.admin.status(GROUP, store=leader)).leader == leader
            remove = MemberStep(MemberAction.REMOVE, leader)
            with pytest.raises(PermissionDenied):
                await client.admin.change_members(GROUP, [remove])
            with pytest.raises(PermissionDenied):
                await client.admin.transfer(GROUP, leader % 3 + 1)
            with pytest.raises(PermissionDenied):
                await client.admin.snapshot(GROUP, store=leader)

    run_cluster(scenario)


def test_what_a_client_sent_and_did_not_hear_of_may_have_been_done_when_it_closes() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        client = cluster.client()
        await write(client, 1)
        leader = await cluster.wait_for_leader()
        others = [f"s{store}" for store in (1, 2, 3) if store != leader]
        cluster.simulation.network.partition([f"s{leader}"], others)
        sent = client.propose(GROUP, b"line", timeout_ms=30_000, exactly_once=False)
        await asyncio.sleep(0.5)
        await client.close()
        with pytest.raises(ConnectionLost, match="closed"):
            await sent
        gc.collect()
        cluster.simulation.network.heal()

    run_cluster(scenario)
