"""A group that lost its quorum for good goes on from one copy, at an operator's word."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
from tests.kits.raft.damage import files_of, flip_text
from tests.kits.raft.host_cluster import GROUP, SETTINGS, Cluster, address, run_cluster, write

from raftwood.base.environment import Environment
from raftwood.base.errors import (
    InvalidInput,
    NotFound,
    RaftwoodError,
    StoreDamaged,
    StoreLocked,
)
from raftwood.raft.membership import MemberAction, MemberStep
from raftwood.raft.offline import GroupCopy, examine_group, recover_group

FOLDER = "/data/store"
Work = Callable[[Environment], Coroutine[Any, Any, Any]]


def _numbered(count: int) -> list[bytes]:
    return [b"line %d" % number for number in range(count)]


async def _run_on(cluster: Cluster, store: int, work: Work) -> Any:
    """Run a tool on a store's machine, and answer or raise what it did."""
    results: list[Any] = []

    async def program(environment: Environment) -> None:
        try:
            results.append(await work(environment))
        except RaftwoodError as error:
            results.append(error)

    machine = cluster.machines[store]
    machine.start(program)
    await cluster.until(lambda: not machine.running)
    if results and isinstance(results[0], RaftwoodError):
        raise results[0]
    return results[0] if results else None


async def _recover(cluster: Cluster, store: int, *others: int) -> GroupCopy:
    members = {each: address(each) for each in (store, *others)}
    copy = await _run_on(
        cluster, store, lambda environment: recover_group(environment, FOLDER, GROUP, members)
    )
    assert isinstance(copy, GroupCopy)
    return copy


async def _lose_two(cluster: Cluster, count: int = 100) -> None:
    """Store 1 is stopped and has all lines; 2 and 3 are gone."""
    cluster.start(1, 2, 3)
    async with cluster.client() as client:
        await write(client, count)
    await cluster.agree(1, 2, 3)
    for store in (2, 3):
        cluster.machines[store].power_off()
    await cluster.stop(1)


def _leads(cluster: Cluster, store: int) -> bool:
    return (
        cluster.machines[store].running
        and cluster.has_group(store)
        and cluster.hosts[store].is_leading(GROUP)
    )


async def _come_and_leave(cluster: Cluster, store: int) -> None:
    cluster.start(store)
    await cluster.until(lambda: cluster.has_group(store))
    await cluster.until(lambda: not cluster.has_group(store))


async def _add(cluster: Cluster, *stores: int) -> None:
    cluster.start(*stores, joins=True)
    await cluster.until(lambda: _leads(cluster, 1))
    async with cluster.client(1) as client:
        for store in stores:
            for action in (MemberAction.ADD_LEARNER, MemberAction.ADD_VOTER):
                step = MemberStep(action, store, address(store))
                await client.admin.change_members(GROUP, [step])


@pytest.mark.parametrize("snapshot_entries", [0, 30])
def test_a_group_goes_on_from_the_copy_that_is_left_and_gets_new_stores(
    snapshot_entries: int,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await _lose_two(cluster)
        copy = await _recover(cluster, 1)
        assert copy.stores == (1, 2, 3)
        cluster.start(1)
        async with cluster.client(1) as client:
            await write(client, 50, start=100)
            await _add(cluster, 4, 5)
            await write(client, 50, start=150)
        assert await cluster.agree(1, 4, 5) == _numbered(200)
        assert cluster.hosts[5].status(GROUP).voters == (1, 4, 5)
        # The new stores are a quorum of their own.
        cluster.machines[1].power_off()
        async with cluster.client(4, 5) as client:
            await write(client, 10, start=200)
        cluster.start(1)
        assert await cluster.agree(1, 4, 5) == _numbered(210)

    settings = msgspec.structs.replace(
        SETTINGS, snapshot_entries=snapshot_entries, snapshot_entries_kept=5
    )
    run_cluster(scenario, settings=settings)


def test_what_one_copy_lacked_is_lost_and_all_it_had_is_kept() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 50)
            await cluster.agree(1, 2, 3)
            cluster.machines[1].power_off()
            await write(client, 50, start=50)
        for store in (2, 3):
            cluster.machines[store].power_off()
        await _recover(cluster, 1)
        cluster.start(1)
        await cluster.wait_for_leader()
        assert cluster.lines(1) == _numbered(50)

    run_cluster(scenario)


def test_sessions_survive_so_that_a_command_sent_again_is_not_done_twice() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _lose_two(cluster)
        await _recover(cluster, 1)
        cluster.start(1)
        await cluster.wait_for_leader()
        assert cluster.hosts[1].status(GROUP).sessions == 1

    run_cluster(scenario)


def test_stores_that_were_given_up_leave_when_the_group_tells_them() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _lose_two(cluster)
        await _recover(cluster, 1)
        cluster.start(1)
        await _add(cluster, 4, 5)
        for store in (2, 3):
            await _come_and_leave(cluster, store)
        assert await cluster.agree(1, 4, 5) == _numbered(100)

    run_cluster(scenario)


def test_stores_that_were_given_up_do_no_harm_even_if_they_elect_one_another() -> None:
    """Their terms grow above the group's, and they send what they have to store 1."""

    async def scenario(cluster: Cluster) -> None:
        await _lose_two(cluster)
        await _recover(cluster, 1)
        cluster.start(1)
        await _add(cluster, 4, 5)
        async with cluster.client(1, 4, 5) as client:
            await write(client, 50, start=100)
        cluster.machines[1].power_off()
        cluster.start(2, 3)
        for store in (2, 3, 2, 3, 2, 3):
            await cluster.until(lambda: _leads(cluster, 2) or _leads(cluster, 3))
            cluster.machines[store].power_off()
            await asyncio.sleep(1)
            cluster.start(store)
        await cluster.until(lambda: _leads(cluster, 2) or _leads(cluster, 3))
        old = cluster.hosts[2 if _leads(cluster, 2) else 3]
        await old.propose(GROUP, b"of the old group", timeout_ms=5_000)
        await old.compact(GROUP, await old.snapshot(GROUP))
        await cluster.until(lambda: _leads(cluster, 4) or _leads(cluster, 5))
        term = cluster.hosts[4].status(GROUP).term
        assert old.status(GROUP).term > term
        cluster.start(1)
        await asyncio.sleep(10)
        async with cluster.client(1, 4, 5) as client:
            await write(client, 50, start=150)
        assert await cluster.agree(1, 4, 5) == _numbered(200)
        assert {cluster.hosts[each].status(GROUP).term for each in (1, 4, 5)} == {term}

    run_cluster(scenario)


def test_a_store_that_was_given_up_is_not_added_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _lose_two(cluster)
        await _recover(cluster, 1)
        cluster.start(1)
        await cluster.wait_for_leader()
        step = MemberStep(MemberAction.ADD_LEARNER, 2, address(2))
        with pytest.raises(InvalidInput, match="given up"):
            await cluster.hosts[1].change_members(GROUP, [step], timeout_ms=5_000)

    run_cluster(scenario)


def test_a_crash_while_it_is_recovered_or_started_is_made_good_by_the_next_attempt() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _lose_two(cluster)
        machine = cluster.machines[1]
        members = {1: address(1)}

        async def program(environment: Environment) -> None:
            await recover_group(environment, FOLDER, GROUP, members)

        for pause_ms in (1, 2, 3, 5, 8, 12, 20):
            machine.start(program)
            await asyncio.sleep(pause_ms / 1000)
            machine.power_off()
        await _recover(cluster, 1)
        for pause_ms in (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30):
            cluster.start(1)
            await asyncio.sleep(pause_ms / 1000)
            machine.power_off()
        cluster.start(1)
        async with cluster.client(1) as client:
            await write(client, 20, start=100)
        await _add(cluster, 4)
        assert await cluster.agree(1, 4) == _numbered(120)

    for seed in range(1, 7):
        run_cluster(scenario, seed=seed)


def test_a_new_store_may_be_a_member_from_the_start() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _lose_two(cluster)
        await _recover(cluster, 1, 4)
        cluster.start(1)
        cluster.start(4, joins=True)
        async with cluster.client(1, 4) as client:
            await write(client, 20, start=100)
        assert await cluster.agree(1, 4) == _numbered(120)
        assert cluster.hosts[4].status(GROUP).voters == (1, 4)

    run_cluster(scenario)


def test_what_cannot_be_recovered_is_refused_and_nothing_changes() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _lose_two(cluster)
        with pytest.raises(InvalidInput, match="store 2 was a member before"):
            await _recover(cluster, 1, 2)
        with pytest.raises(InvalidInput, match="name store 1 among the members"):
            await _run_on(
                cluster, 1, lambda env: recover_group(env, FOLDER, GROUP, {4: address(4)})
            )
        with pytest.raises(InvalidInput, match="no address"):
            await _run_on(cluster, 1, lambda env: recover_group(env, FOLDER, GROUP, {1: "here"}))
        with pytest.raises(NotFound, match="no group 9"):
            await _run_on(cluster, 1, lambda env: examine_group(env, FOLDER, 9))
        copy = await _run_on(cluster, 1, lambda env: examine_group(env, FOLDER, GROUP))
        for store in (2, 3):
            cluster.start(store)
        cluster.start(1)
        await cluster.agree(1, 2, 3)
        assert cluster.hosts[1].status(GROUP).voters == (1, 2, 3)
        assert copy.last_index >= 100

    run_cluster(scenario)


def test_a_folder_that_a_store_uses_is_refused() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader()
        environment = cluster.machines[1].environment
        assert environment is not None
        other = cluster.machines[1].disk.session(cluster.simulation.loop.outside)
        other_environment = msgspec.structs.replace(environment, files=other)
        with pytest.raises(StoreLocked):
            await examine_group(other_environment, FOLDER, GROUP)

    run_cluster(scenario)


def test_a_damaged_copy_is_refused() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _lose_two(cluster)
        machine = cluster.machines[1]
        flip_text(machine, files_of(machine, ".segment")[0], b"line 50")
        with pytest.raises(StoreDamaged):
            await _recover(cluster, 1)

    run_cluster(scenario)


def test_the_log_is_kept_and_tells_the_new_members_to_whoever_joins() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _lose_two(cluster)
        await _recover(cluster, 1)
        cluster.start(1)
        await cluster.until(lambda: _leads(cluster, 1))
        before = cluster.hosts[1].status(GROUP)
        assert (before.first_index, before.voters) == (1, (1,))
        assert before.epoch > 100, "a change of the members is news"
        await _add(cluster, 4)
        assert await cluster.agree(1, 4) == _numbered(100)
        joined = cluster.hosts[4].status(GROUP)
        assert (joined.first_index, joined.voters) == (1, (1, 4))

    run_cluster(scenario, settings=msgspec.structs.replace(SETTINGS, snapshot_entries=0))


def test_a_crash_as_the_members_are_noted_is_made_good_by_the_next_start() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _lose_two(cluster)
        await _recover(cluster, 1, 4)
        for pause_s in (0.0, 0.001, 0.01, 0.05):
            cluster.start(1)
            await asyncio.sleep(pause_s)
            cluster.machines[1].power_off()
        cluster.start(1)
        cluster.start(4, joins=True)
        await cluster.until(lambda: _leads(cluster, 1) or _leads(cluster, 4))
        assert cluster.hosts[1].status(GROUP).voters == (1, 4)
        assert await cluster.agree(1, 4) == _numbered(100)

    run_cluster(scenario)
