"""After a crash a replica's votes are held to what the other voters tell, for a bounded time."""

import asyncio
from contextlib import nullcontext

import pytest
from tests.kits.models import replaced
from tests.kits.raft.damage import wait_repaired
from tests.kits.raft.host_cluster import GROUP, Cluster, run_cluster, write
from tests.kits.raft.lost_tails import follower_without_tail, horizon_of, lose_tail

from raftwood.base.environment import Environment
from raftwood.raft.leadership import LogEnd, VoteFloor
from raftwood.raft.log_ends import LogEnds
from raftwood.raft.offline import examine_group

LONG, SHORT = (3, 10), (3, 9)


def _floor(*asked: int) -> VoteFloor:
    return VoteFloor(asked, wait_ticks=3, hold_ticks=10)


def _end(position: tuple[int, int], *, term: int = 5) -> LogEnd:
    return LogEnd(1, term, *position)


def _asks(floor: VoteFloor) -> bool:
    return floor.is_asking


def _pass(floor: VoteFloor, ticks: int) -> None:
    for _ in range(ticks):
        floor.tick()


def test_nobody_is_voted_for_before_all_have_answered() -> None:
    floor = _floor(2, 3)
    floor.answered(2, _end(SHORT))
    assert _asks(floor)
    assert not floor.admits(LONG)
    floor.answered(3, _end(SHORT))
    assert not _asks(floor)
    assert floor.admits(LONG)


def test_the_longest_log_that_was_heard_of_is_the_floor_and_the_highest_term() -> None:
    floor = _floor(2, 3)
    floor.answered(2, _end(LONG, term=5))
    floor.answered(3, _end((2, 50), term=7))
    assert floor.term == 7
    assert not floor.admits(SHORT)
    assert not floor.admits((2, 60))
    assert floor.admits(LONG)
    assert floor.admits((4, 1))


def test_who_does_not_answer_is_waited_for_so_long_and_no_longer() -> None:
    floor = _floor(2, 3)
    floor.answered(2, _end(LONG))
    _pass(floor, 2)
    assert _asks(floor)
    _pass(floor, 1)
    assert not _asks(floor)
    assert floor.admits(LONG)
    assert not floor.admits(SHORT)


def test_the_floor_lapses_where_whoever_told_it_never_comes_back() -> None:
    floor = _floor(2)
    floor.answered(2, _end(LONG))
    _pass(floor, 9)
    assert not floor.admits(SHORT)
    assert not floor.is_over(SHORT)
    _pass(floor, 1)
    assert floor.admits(SHORT)
    assert floor.is_over(SHORT)


def test_it_is_over_once_the_log_itself_is_as_long() -> None:
    floor = _floor(2)
    floor.answered(2, _end(LONG))
    assert not floor.is_over(SHORT)
    assert floor.is_over(LONG)


@pytest.mark.parametrize("asked", [(), (2,)])
def test_who_has_nobody_to_ask_or_hears_nothing_is_not_held(asked: tuple[int, ...]) -> None:
    floor = _floor(*asked)
    for store in asked:
        floor.answered(store, None)
    assert floor.admits((0, 0))
    assert floor.is_over((0, 0))


def test_stores_of_release_0_1_0_do_not_know_the_question_and_elect_as_ever() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 20)
            with replaced(LogEnds, register=lambda *_: None)():
                for store in (1, 2, 3):
                    cluster.machines[store].power_off()
                cluster.start(1, 2, 3)
                began = cluster.simulation.now
                await cluster.wait_for_leader()
            assert cluster.simulation.now - began < 3
            await write(client, 20, start=20)
        assert len(await cluster.agree(1, 2, 3)) == 40

    run_cluster(scenario)


def test_a_store_that_was_closed_asks_nobody() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader()
        await cluster.stop(1)
        cluster.start(1)
        await cluster.until(lambda: cluster.has_group(1))
        assert cluster.hosts[1]._replicas[GROUP].vote_floor is None

    run_cluster(scenario)


def test_after_a_crash_no_vote_is_given_twice_in_a_term_that_any_voter_knows() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 20)
        await cluster.agree(1, 2, 3)
        store = (await cluster.wait_for_leader()) % 3 + 1
        other = next(each for each in (1, 2, 3) if each not in (store, cluster.leader()))
        machine = cluster.machines[store]
        # Another store stands, and may have had this one's vote.
        raft = cluster.hosts[other]._replicas[GROUP].node.raft
        machine.power_off()
        for each in (1, 2, 3):
            if each not in (store, other):
                cluster.machines[each].power_off()
        term = raft.term = raft.term + 5
        cluster.start(store)
        await cluster.until(lambda: cluster.has_group(store))
        replica = cluster.hosts[store]._replicas[GROUP]
        await cluster.until(lambda: not replica.vote_floor)
        assert replica.term > term or (replica.term, replica.node.raft.vote) == (term, store)

    run_cluster(scenario)


def test_a_store_that_closes_in_doubt_is_in_doubt_at_its_next_start() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 20)
        await cluster.agree(1, 2, 3)
        for store in (1, 2, 3):
            cluster.machines[store].power_off()
        for _ in range(2):
            cluster.start(1)
            await cluster.until(lambda: cluster.has_group(1))
            assert cluster.hosts[1]._replicas[GROUP].vote_floor is not None
            await cluster.stop(1)
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 20, start=20)
        assert len(await cluster.agree(1, 2, 3)) == 40

    run_cluster(scenario)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_leader_that_counts_on_what_is_gone_has_the_replica_repaired_at_once(
    is_told: bool,
) -> None:
    """A leader of release 0.1.0 tells nothing: its heartbeat shows it."""

    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            store = await follower_without_tail(cluster, client, kept=20, lost=20)
        cluster.start(store)
        await wait_repaired(cluster, store)
        assert len(await cluster.agree(1, 2, 3)) == 40

    with nullcontext() if is_told else replaced(LogEnds, register=lambda *_: None)():
        run_cluster(scenario)


def test_the_group_goes_on_where_the_store_with_the_longest_log_dies_after_it_answered() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 20)
            await cluster.agree(1, 2, 3)
            leader = await cluster.wait_for_leader()
            victim, late = (store for store in (1, 2, 3) if store != leader)
            cluster.machines[late].power_off()
            horizon = horizon_of(cluster.machines[victim])
            await write(client, 20, start=20)
            for store in (leader, victim):
                cluster.machines[store].power_off()
            lose_tail(cluster.machines[victim], first=b"line 20", horizon=horizon)
            cluster.start(leader, victim)
            await cluster.until(lambda: cluster.has_group(victim))
            floor = cluster.hosts[victim]._replicas[GROUP].vote_floor
            assert floor is not None
            await cluster.until(lambda: floor.last > (0, 0))
            cluster.machines[leader].power_off()
            began = cluster.simulation.now
            cluster.start(late)
            await asyncio.sleep(20)
            assert not cluster.leader()
            await cluster.wait_for_leader()
            assert cluster.simulation.now - began < 40

    run_cluster(scenario)


def test_a_group_that_was_stopped_in_doubt_is_not_in_doubt_for_ever() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader()
        for store in (1, 2, 3):
            cluster.machines[store].power_off()
        cluster.start(1)
        await cluster.until(lambda: cluster.has_group(1))
        host = cluster.hosts[1]
        await host.stop_group(GROUP)
        assert host._log_ends.are_needed
        await asyncio.sleep(31)
        assert not host._log_ends.are_needed

    run_cluster(scenario)


def test_a_start_that_serves_nothing_leaves_the_doubt() -> None:
    """Its port was taken, say. The groups that did not start are in doubt at the next start too."""

    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 20)
        machine = cluster.machines[1]
        machine.power_off()
        cluster.groups = ()
        cluster.start(1)
        await cluster.until(lambda: 1 in cluster.hosts)
        await cluster.stop(1)

        async def examined(environment: Environment) -> None:
            await examine_group(environment, "/data/store", GROUP)

        machine.start(examined)
        await cluster.until(lambda: not machine.running)
        cluster.groups = (GROUP,)
        cluster.start(1)
        await cluster.until(lambda: 1 in cluster.hosts)
        assert not cluster.hosts[1]._store.log.was_closed
        await cluster.agree(1, 2, 3)
        await cluster.until(lambda: not cluster.hosts[1]._log_ends.are_needed)
        await cluster.stop(1)
        cluster.start(1)
        await cluster.until(lambda: 1 in cluster.hosts)
        assert cluster.hosts[1]._store.log.was_closed

    run_cluster(scenario)


def test_an_answer_that_comes_late_spends_votes_too() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 20)
        cluster.machines[1].power_off()
        cluster.start(1)
        await cluster.until(lambda: cluster.has_group(1))
        host = cluster.hosts[1]
        replica = host._replicas[GROUP]
        floor = replica.vote_floor
        assert floor is not None
        await cluster.until(lambda: floor.is_taken_over)
        # Say that store 2 was not heard in time, and answers after all.
        replica.vote_floor = host._log_ends._floors[GROUP] = floor
        floor.unanswered[2] = None
        _pass(floor, 100)
        term = replica.node.raft.term + 5
        host._log_ends._on_answer(2, GROUP, LogEnd(GROUP, term, 1, 1))
        assert replica.node.raft.term == term

    run_cluster(scenario)
