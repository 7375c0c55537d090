"""A damaged replica is repaired from its peers, or stays halted; what it has never spreads."""

import asyncio

import msgspec
import pytest
from tests.kits.models import replaced
from tests.kits.raft.damage import (
    files_of,
    flip,
    flip_text,
    is_whole,
    snapshots_of,
    wait_repaired,
)
from tests.kits.raft.host_cluster import (
    GROUP,
    SETTINGS,
    Cluster,
    Lines,
    address,
    run_cluster,
    write,
)
from tests.kits.raft.lost_tails import follower_without_tail, horizon_of, lose_tail

from raftwood.base.errors import (
    NotFound,
    Overloaded,
    RaftwoodError,
    StoreDamaged,
    Unavailable,
)
from raftwood.raft import repair
from raftwood.raft.bootstrap import ReplicaOpener
from raftwood.raft.group_log import GroupState
from raftwood.raft.log_ends import LogEnds
from raftwood.raft.membership import MemberAction, MemberStep
from raftwood.raft.repair import Repairs
from raftwood.raft.replica import Replica


async def _refuse(*_: object) -> None:
    raise NotFound("the server has no such method")


def _numbered(count: int) -> list[bytes]:
    return [b"line %d" % number for number in range(count)]


async def _snapshot_everywhere(cluster: Cluster) -> None:
    for store in cluster.members:
        index = await cluster.hosts[store].snapshot(GROUP)
        await cluster.hosts[store].compact(GROUP, index)


async def _damaged_follower(cluster: Cluster, count: int = 100) -> int:
    """A cluster with snapshots and lines, and one follower stopped whose snapshot is bad."""
    cluster.start(*cluster.members)
    async with cluster.client() as client:
        await write(client, count)
    await cluster.agree(*cluster.members)
    await _snapshot_everywhere(cluster)
    leader = await cluster.wait_for_leader()
    store = next(each for each in cluster.members if each != leader)
    await cluster.stop(store)
    flip(cluster.machines[store], snapshots_of(cluster.machines[store])[0], share=0.7)
    return store


def test_a_replica_with_a_bad_snapshot_is_repaired_while_its_store_serves_other_groups() -> None:
    async def scenario(cluster: Cluster) -> None:
        store = await _damaged_follower(cluster)
        cluster.start(store)
        await cluster.until(lambda: cluster.has_group(store, 2))
        async with cluster.client() as client:
            await write(client, 20, start=100)
            await write(client, 20, group=2)
        await wait_repaired(cluster, store)
        assert await cluster.agree(1, 2, 3) == _numbered(120)
        assert await cluster.agree(1, 2, 3, group=2) == _numbered(20)
        assert cluster.hosts[store].halted() == {}

    run_cluster(scenario, groups=(GROUP, 2))


def test_a_snapshot_that_is_missing_is_damage() -> None:
    async def scenario(cluster: Cluster) -> None:
        store = await _damaged_follower(cluster)
        machine = cluster.machines[store]
        machine.disk.lose(snapshots_of(machine)[0])
        cluster.start(store)
        await wait_repaired(cluster, store)
        assert await cluster.agree(1, 2, 3) == _numbered(100)

    run_cluster(scenario)


def test_a_leader_that_finds_its_log_damaged_leaves_the_lead_and_is_repaired() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        leader = await cluster.wait_for_leader()
        away = leader % 3 + 1
        cluster.machines[away].kill()
        async with cluster.client() as client:
            await write(client, 400)
            segment = files_of(cluster.machines[leader], ".segment")[0]
            flip_text(cluster.machines[leader], segment, b"line 100")
            cluster.start(away)
            await cluster.until(lambda: leader not in (0, cluster.leader()))
            await write(client, 20, start=400)
            await wait_repaired(cluster, leader)
        assert await cluster.agree(1, 2, 3) == _numbered(420)

    run_cluster(scenario)


def test_a_bad_snapshot_is_refused_by_its_receiver_and_found_by_its_sender() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        leader = await cluster.wait_for_leader()
        away = leader % 3 + 1
        cluster.machines[away].kill()
        async with cluster.client() as client:
            await write(client, 200)
            for store in {1, 2, 3} - {away}:
                await client.admin.snapshot(GROUP, store=store)
            machine = cluster.machines[leader]
            flip_text(machine, snapshots_of(machine)[0], b"line 100")
            cluster.start(away)
            await wait_repaired(cluster, leader)
        assert await cluster.agree(1, 2, 3) == _numbered(200)

    run_cluster(scenario)


def test_a_reader_of_the_log_finds_damage_and_the_replica_is_repaired() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 400)
        await cluster.agree(1, 2, 3)
        machine = cluster.machines[1]
        flip_text(machine, files_of(machine, ".segment")[0], b"line 50")
        with pytest.raises(StoreDamaged, match="checksum"):
            await cluster.hosts[1].read_log(GROUP, 1)
        assert cluster.hosts[1].status(GROUP).role == "halted"
        assert "being repaired" in cluster.hosts[1].halted()[GROUP]
        with pytest.raises(Unavailable, match="being repaired"):
            cluster.hosts[1].stale_read(GROUP, b"all")
        await wait_repaired(cluster, 1)
        assert await cluster.agree(1, 2, 3) == _numbered(400)

    run_cluster(scenario)


def test_a_repair_goes_on_after_a_crash_at_any_time() -> None:
    async def scenario(cluster: Cluster) -> None:
        store = await _damaged_follower(cluster)
        machine = cluster.machines[store]
        crashes = 0
        for pause_ms in (5, 10, 20, 40, 60, 80, 100, 150, 200, 300, 500, 900, 1500):
            cluster.start(store)
            await asyncio.sleep(pause_ms / 1000)
            if is_whole(cluster, store):
                break
            machine.power_off()
            crashes += 1
        assert crashes > 5
        if not machine.running:
            cluster.start(store)
        async with cluster.client() as client:
            await write(client, 20, start=100)
        await wait_repaired(cluster, store)
        assert await cluster.agree(1, 2, 3) == _numbered(120)

    for seed in range(1, 5):
        run_cluster(scenario, seed=seed)


def test_without_a_quorum_of_others_the_replica_stays_halted_and_says_why() -> None:
    async def scenario(cluster: Cluster) -> None:
        store = await _damaged_follower(cluster)
        others = [each for each in (1, 2, 3) if each != store]
        await cluster.stop(others[0])
        cluster.start(store)
        await asyncio.sleep(20)
        status = cluster.hosts[store].status(GROUP)
        assert status.role == "halted"
        assert "raftwood raft recover" in status.problem
        cluster.start(others[0])
        await wait_repaired(cluster, store)
        assert await cluster.agree(1, 2, 3) == _numbered(100)

    run_cluster(scenario)


def test_the_only_member_stays_halted_and_keeps_its_data() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1)
        async with cluster.client() as client:
            await write(client, 100)
        await _snapshot_everywhere(cluster)
        await cluster.stop(1)
        flip(cluster.machines[1], snapshots_of(cluster.machines[1])[0], share=0.5)
        cluster.start(1)
        await cluster.until(lambda: 1 in cluster.hosts and bool(cluster.hosts[1].halted()))
        await asyncio.sleep(30)
        problem = cluster.hosts[1].status(GROUP).problem
        assert "the only member, restore its folder from a backup" in problem
        assert snapshots_of(cluster.machines[1])

    run_cluster(scenario, members=(1,))


def test_a_damaged_replica_that_an_operator_removed_does_not_come_back() -> None:
    async def scenario(cluster: Cluster) -> None:
        store = await _damaged_follower(cluster)
        machine = cluster.machines[store]
        async with cluster.client() as client:
            step = MemberStep(MemberAction.REMOVE, store)
            await client.admin.change_members(GROUP, [step])
            cluster.start(store)
            await cluster.until(lambda: store in cluster.hosts and not snapshots_of(machine))
            await asyncio.sleep(10)
            leader = await cluster.wait_for_leader()
            assert store not in cluster.hosts[leader].status(GROUP).voters
            assert not cluster.has_group(store)

    run_cluster(scenario)


def test_a_damaged_learner_comes_back_as_a_learner() -> None:
    async def scenario(cluster: Cluster) -> None:
        store = await _damaged_follower(cluster)
        async with cluster.client() as client:
            step = MemberStep(MemberAction.ADD_LEARNER, store)
            await client.admin.change_members(GROUP, [step])
        cluster.start(store)
        await cluster.until(lambda: cluster.has_group(store))
        assert await cluster.agree(1, 2, 3) == _numbered(100)
        await asyncio.sleep(10)
        assert cluster.hosts[store].status(GROUP).learners == (store,)

    run_cluster(scenario)


def test_a_repaired_replica_gives_no_vote_before_it_has_again_what_it_had() -> None:
    async def scenario(cluster: Cluster) -> None:
        """One store sleeps through changes that another helped to commit, and wants its vote."""
        cluster.start(1, 2, 3)
        leader = await cluster.wait_for_leader()
        late, damaged = (store for store in (1, 2, 3) if store != leader)
        cluster.machines[late].power_off()
        cluster.start(4, 5, joins=True)
        async with cluster.client(leader, damaged) as client:
            for store in (4, 5):
                for action in (MemberAction.ADD_LEARNER, MemberAction.ADD_VOTER):
                    step = MemberStep(action, store, address(store))
                    await client.admin.change_members(GROUP, [step])
            await write(client, 2_000)
        machine = cluster.machines[damaged]
        flip_text(machine, files_of(machine, ".segment")[0], b"line 50")
        with pytest.raises(StoreDamaged):
            await cluster.hosts[damaged].read_log(GROUP, 1)
        await cluster.until(lambda: cluster.has_group(damaged))
        replica = cluster.hosts[damaged]._replicas[GROUP]
        for store in (leader, 4, 5):
            cluster.machines[store].power_off()
        assert replica.applied < replica.storage.state.votes_from
        cluster.start(late)
        await asyncio.sleep(60)
        assert replica.applied < 100
        assert cluster.leader() == 0
        cluster.start(leader)
        cluster.start(4, 5, joins=True)
        await wait_repaired(cluster, damaged)
        assert await cluster.agree(1, 2, 3, 4, 5) == _numbered(2_000)

    run_cluster(scenario)


def test_a_log_that_lost_its_end_without_a_trace_is_repaired_when_the_leader_counts_on_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            store = await follower_without_tail(cluster, client, kept=150, lost=50)
            # The others are of release 0.1.0 and tell nothing when they are asked.
            with replaced(LogEnds, _answer=_refuse)():
                cluster.start(store)
                await write(client, 20, start=200)
                await wait_repaired(cluster, store)
        assert await cluster.agree(1, 2, 3) == _numbered(220)

    run_cluster(scenario)


def test_a_lost_end_is_noted_before_anything_else_though_there_was_no_room_for_it() -> None:
    """Else the store would vote with a shortened log after its next start."""
    noted: list[GroupState] = []

    async def note(opener: ReplicaOpener, group: int, state: GroupState) -> None:
        noted.append(state)
        if len(noted) == 1:
            raise Overloaded("no room")
        await note_as_before(opener, group, state)

    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            store = await follower_without_tail(cluster, client, kept=150, lost=50)
            with replaced(ReplicaOpener, note=note)():
                cluster.start(store)
                await write(client, 20, start=200)
                await wait_repaired(cluster, store)
        assert len(noted) > 1
        assert all(state.votes_from > 150 for state in noted)

    note_as_before = ReplicaOpener.note
    run_cluster(scenario)


def test_a_leader_that_is_damaged_in_its_sleep_is_replaced_and_repaired() -> None:
    settings = msgspec.structs.replace(SETTINGS, quiesce_ticks=10)

    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 400)
        await cluster.agree(1, 2, 3)
        hosts = cluster.hosts.values()
        await cluster.until(lambda: all(host.status(GROUP).is_asleep for host in hosts))
        leader = await cluster.wait_for_leader()
        machine = cluster.machines[leader]
        flip_text(machine, files_of(machine, ".segment")[0], b"line 50")
        with pytest.raises(StoreDamaged):
            await cluster.hosts[leader].read_log(GROUP, 1)
        await wait_repaired(cluster, leader)
        assert await cluster.agree(1, 2, 3) == _numbered(400)

    run_cluster(scenario, settings=settings)


def test_a_group_may_be_stopped_and_started_again_in_the_middle_of_its_repair() -> None:
    async def scenario(cluster: Cluster) -> None:
        store = await _damaged_follower(cluster)
        cluster.start(store)
        await cluster.until(lambda: store in cluster.hosts and bool(cluster.hosts[store].halted()))
        host = cluster.hosts[store]
        for pause_ms in (1, 5, 10, 20, 50, 100, 200, 400):
            await asyncio.sleep(pause_ms / 1000)
            await host.stop_group(GROUP)
            assert GROUP not in host.halted()
            await host.start_group(GROUP, Lines, members=cluster.members)
        await wait_repaired(cluster, store)
        assert await cluster.agree(1, 2, 3) == _numbered(100)

    for seed in range(1, 5):
        run_cluster(scenario, seed=seed)


def test_a_repair_ends_also_where_others_make_the_replica_a_voter_and_it_leads_at_once() -> None:
    settings = msgspec.structs.replace(SETTINGS, quiesce_ticks=0)

    async def scenario(cluster: Cluster) -> None:
        store = await _damaged_follower(cluster)
        leader = await cluster.wait_for_leader()
        cluster.start(store)
        await cluster.until(lambda: cluster.has_group(store))
        host = cluster.hosts[leader]
        step = MemberStep(MemberAction.ADD_VOTER, store)
        await host.change_members(GROUP, [step], timeout_ms=1000)
        await cluster.until(lambda: cluster.hosts[store].status(GROUP).voters == (1, 2, 3))
        assert not is_whole(cluster, store)
        await host.transfer_leadership(GROUP, store, timeout_ms=1000)
        await wait_repaired(cluster, store)
        assert await cluster.wait_for_leader() == store
        assert await cluster.agree(1, 2, 3) == _numbered(100)

    run_cluster(scenario, settings=settings)


def test_two_damaged_stores_of_five_are_repaired_at_the_same_time() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(*cluster.members)
        async with cluster.client() as client:
            await write(client, 100)
            await cluster.agree(*cluster.members)
            await _snapshot_everywhere(cluster)
            leader = await cluster.wait_for_leader()
            damaged = [store for store in cluster.members if store != leader][:2]
            await cluster.stop(*damaged)
            for store in damaged:
                machine = cluster.machines[store]
                flip(machine, snapshots_of(machine)[0], share=0.6)
            cluster.start(*damaged)
            await write(client, 20, start=100)
            for store in damaged:
                await wait_repaired(cluster, store)
        assert await cluster.agree(*cluster.members) == _numbered(120)
        leader = await cluster.wait_for_leader()
        assert cluster.hosts[leader].status(GROUP).voters == (1, 2, 3, 4, 5)

    for seed in range(1, 4):
        run_cluster(scenario, seed=seed, members=(1, 2, 3, 4, 5))


@pytest.mark.parametrize("seed", range(1, 6))
def test_two_bad_snapshots_of_three_are_repaired_from_the_one_whole_copy(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 100)
            await cluster.agree(1, 2, 3)
            await _snapshot_everywhere(cluster)
            whole = seed % 3 + 1
            damaged = [store for store in (1, 2, 3) if store != whole]
            if seed % 2:
                await cluster.stop(1, 2, 3)
            else:  # all start in doubt
                for store in (1, 2, 3):
                    cluster.machines[store].power_off()
            for store in damaged:
                machine = cluster.machines[store]
                flip(machine, snapshots_of(machine)[0], share=0.6)
            cluster.start(1, 2, 3)
            began = cluster.simulation.now
            assert await cluster.wait_for_leader() == whole
            assert cluster.simulation.now - began < 10
            await write(client, 20, start=100)
            for store in damaged:
                await wait_repaired(cluster, store)
        assert await cluster.agree(1, 2, 3) == _numbered(120)

    run_cluster(scenario, seed=seed)


@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.parametrize("apart_s", [0.0, 0.3, 1.0, 2.0, 7.0])
def test_a_second_leader_that_is_damaged_soon_after_the_first_is_replaced(
    apart_s: float, seed: int
) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 400)
            await cluster.agree(1, 2, 3)
            damaged = []
            for _ in range(2):
                leader = await cluster.wait_for_leader()
                machine = cluster.machines[leader]
                flip_text(machine, files_of(machine, ".segment")[0], b"line 50")
                with pytest.raises(StoreDamaged):
                    await cluster.hosts[leader].read_log(GROUP, 1)
                damaged.append(leader)
                await cluster.until(lambda: cluster.leader() not in (0, damaged[-1]), 10.0)
                await asyncio.sleep(apart_s)
            await write(client, 20, start=400)
            for store in damaged:
                await wait_repaired(cluster, store)
        assert await cluster.agree(1, 2, 3) == _numbered(420)

    run_cluster(scenario, seed=seed)


def _a_leader_is_damaged_while_another_store_says_nothing(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 400)
            await cluster.agree(1, 2, 3)
            leader = await cluster.wait_for_leader()
            silent = leader % 3 + 1
            await cluster.stop(silent)
            machine = cluster.machines[silent]
            flip_text(machine, files_of(machine, ".segment")[0], b"line 50")
            cluster.start(silent)  # it sets its log aside
            await cluster.until(lambda: silent in cluster.hosts and _is_halted(cluster, silent))
            machine = cluster.machines[leader]
            flip_text(machine, files_of(machine, ".segment")[0], b"line 50")
            with pytest.raises(StoreDamaged):
                await cluster.hosts[leader].read_log(GROUP, 1)
            await write(client, 20, start=400)
            for store in (leader, silent):
                await wait_repaired(cluster, store)
        assert await cluster.agree(1, 2, 3) == _numbered(420)

    run_cluster(scenario, seed=seed)


def _is_halted(cluster: Cluster, store: int) -> bool:
    return GROUP in cluster.hosts[store].halted()


@pytest.mark.parametrize("seed", [3, 7, 8])
def test_a_store_that_still_votes_does_not_leave_before_the_others_have_a_quorum(seed: int) -> None:
    _a_leader_is_damaged_while_another_store_says_nothing(seed)
    leave = replaced(repair, _is_quorum_left=lambda *_: True)
    with leave(), pytest.raises((TimeoutError, RaftwoodError)):
        _a_leader_is_damaged_while_another_store_says_nothing(seed)


def test_a_copy_that_lacks_what_two_damaged_ones_have_acknowledged_does_not_lead() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 100)
            await cluster.agree(1, 2, 3)
            await _snapshot_everywhere(cluster)
            behind = (await cluster.wait_for_leader()) % 3 + 1
            await cluster.stop(behind)
            await write(client, 20, start=100)
        damaged = [store for store in (1, 2, 3) if store != behind]
        await cluster.stop(*damaged)
        for store in damaged:
            machine = cluster.machines[store]
            flip(machine, snapshots_of(machine)[0], share=0.6)
        cluster.start(1, 2, 3)
        await asyncio.sleep(60)
        assert not cluster.leader()
        for store in damaged:
            problem = cluster.hosts[store].halted()[GROUP]
            assert "raftwood raft recover --data-folder FOLDER --group 1 --members" in problem

    run_cluster(scenario)


def test_a_replica_that_lost_its_end_gives_no_vote_while_it_is_halted_nor_after_a_start() -> None:
    async def scenario(cluster: Cluster) -> None:
        """Two of three have all; one of them loses it, and the other one dies."""
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 20)
            await cluster.agree(1, 2, 3)
            leader = await cluster.wait_for_leader()
            victim, late = (store for store in (1, 2, 3) if store != leader)
            cluster.machines[late].power_off()
            horizon = horizon_of(cluster.machines[victim])
            await write(client, 20, start=20)
        machine = cluster.machines[victim]
        machine.power_off()
        lose_tail(machine, first=b"line 20", horizon=horizon)
        cluster.start(victim)
        await cluster.until(
            lambda: victim in cluster.hosts and GROUP in cluster.hosts[victim].halted()
        )
        cluster.machines[leader].power_off()
        for _ in range(2):
            cluster.start(late)
            await asyncio.sleep(60)
            assert not cluster.leader()
            for store in (victim, late):
                cluster.machines[store].power_off()
            cluster.start(victim)
        cluster.start(leader, late)
        async with cluster.client() as client:
            await write(client, 20, start=40)
        await wait_repaired(cluster, victim)
        assert await cluster.agree(1, 2, 3) == _numbered(60)

    run_cluster(scenario)


async def _say_nothing(*_: object) -> None:
    pass


async def _vote_anyway(repairs: Repairs, group: int, token: object, halted: Replica | None) -> None:
    repairs._lost.pop(group, None)
    await _vote(repairs, group, token, halted)


def _ignore(*_: object) -> None:
    pass


_vote = Repairs._vote


def test_a_damaged_replica_that_says_nothing_leaves_the_group_without_a_leader() -> None:
    """A planted bug: the checks above would see it."""
    with replaced(Repairs, _vote=_say_nothing)():
        with pytest.raises(TimeoutError):
            test_two_bad_snapshots_of_three_are_repaired_from_the_one_whole_copy(1)
        with pytest.raises(TimeoutError):
            test_a_second_leader_that_is_damaged_soon_after_the_first_is_replaced(0.0, 1)


def test_a_replica_that_lost_its_end_and_votes_loses_what_was_acked() -> None:
    """A planted bug: the checks above would see it."""
    planted = replaced(Repairs, _vote=_vote_anyway, lost_end=_ignore)
    with planted(), pytest.raises(AssertionError):
        test_a_replica_that_lost_its_end_gives_no_vote_while_it_is_halted_nor_after_a_start()
