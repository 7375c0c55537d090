"""What a raft host does, capability by capability, on simulated stores."""

import asyncio

import msgspec
import pytest
from tests.kits.raft.host_cluster import GROUP, SETTINGS, Cluster, address, run_cluster, write

from raftwood.base.errors import InvalidConfiguration, InvalidInput, NotFound, OutOfRange
from raftwood.disk.segment_log import LogSettings
from raftwood.net.identity import store_identity
from raftwood.raft import service
from raftwood.raft.client_protocol import REGISTER, encode_register_request
from raftwood.raft.core import ConfState, Message, MessageKind
from raftwood.raft.entry_format import RunCache
from raftwood.raft.membership import MemberAction, MemberStep, change_of_members
from raftwood.raft.settings import RaftHostSettings, check_fit
from raftwood.raft.transport import Introduction, encode_frames


def _numbered(count: int) -> list[bytes]:
    return [b"line %d" % number for number in range(count)]


def test_commands_reach_all_replicas_in_order_and_reads_see_them() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 100)
            assert await client.read(GROUP, b"count", timeout_ms=5_000) == b"100"
        assert await cluster.agree(1, 2, 3) == _numbered(100)

    run_cluster(scenario)


def test_what_was_acked_survives_the_power_loss_of_all_stores() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 60)
        for store in (1, 2, 3):
            cluster.machines[store].power_off()
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 60, start=60)
        assert await cluster.agree(1, 2, 3) == _numbered(120)

    run_cluster(scenario)


def test_another_store_leads_when_the_leader_is_killed() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 40)
            leader = await cluster.wait_for_leader()
            cluster.machines[leader].kill()
            await write(client, 40, start=40)
            assert await cluster.wait_for_leader() != leader
            cluster.start(leader)
            assert await cluster.agree(1, 2, 3) == _numbered(80)

    run_cluster(scenario)


def test_a_store_that_stops_hands_its_leadership_over_first() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 20)
            leader = await cluster.wait_for_leader()
            began = cluster.simulation.now
            stopping = asyncio.create_task(cluster.stop(leader))
            await cluster.simulation.wait_until(
                lambda: cluster.leader() not in (0, leader), every_s=0.000_1
            )
            assert cluster.machines[leader].running, "it has not waited for its successor"
            await stopping
            await write(client, 1, start=20)
            assert cluster.simulation.now - began < 1.0, "an election timeout was waited for"

    run_cluster(scenario)


def test_a_follower_that_was_away_gets_entries_from_the_leaders_disk() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            leader = await cluster.wait_for_leader()
            away = next(store for store in (1, 2, 3) if store != leader)
            cluster.machines[away].kill()
            await write(client, 600)
            cluster.start(away)
            assert await cluster.agree(1, 2, 3) == _numbered(600)
            assert cluster.hosts[away].status(GROUP).snapshots == ()

    run_cluster(scenario)


def test_a_follower_that_was_away_too_long_gets_a_snapshot() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            leader = await cluster.wait_for_leader()
            away = next(store for store in (1, 2, 3) if store != leader)
            cluster.machines[away].kill()
            await write(client, 300)
            for store in {1, 2, 3} - {away}:
                index = await client.admin.snapshot(GROUP, store=store)
                assert cluster.hosts[store].status(GROUP).first_index == index + 1
            await write(client, 50, start=300)
            cluster.start(away)
            assert await cluster.agree(1, 2, 3) == _numbered(350)
            assert cluster.hosts[away].status(GROUP).snapshots != ()
            for store in (1, 2, 3):
                cluster.machines[store].power_off()
            cluster.start(1, 2, 3)
            await write(client, 50, start=350)
        assert await cluster.agree(1, 2, 3) == _numbered(400)

    run_cluster(scenario)


def test_snapshots_are_taken_and_the_log_is_cut_as_it_grows() -> None:
    settings = msgspec.structs.replace(SETTINGS, snapshot_entries=50, snapshot_entries_kept=10)

    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 400)
            await cluster.agree(1, 2, 3)
            await cluster.until(
                lambda: all(
                    300 < host.status(GROUP).first_index <= host.status(GROUP).snapshots[0]
                    for host in cluster.hosts.values()
                )
            )
            assert all(len(host.status(GROUP).snapshots) == 1 for host in cluster.hosts.values())
            for store in (1, 2, 3):
                cluster.machines[store].kill()
            cluster.start(1, 2, 3)
            await write(client, 10, start=400)
        assert await cluster.agree(1, 2, 3) == _numbered(410)

    run_cluster(scenario, settings=settings)


def test_a_store_is_added_promoted_and_another_removed() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 50)
            await client.admin.snapshot(GROUP, store=await cluster.wait_for_leader())
            cluster.start(4, joins=True)
            admin = client.admin
            step = MemberStep(MemberAction.ADD_LEARNER, 4, address(4))
            status = await admin.change_members(GROUP, [step])
            assert status.learners == (4,)
            assert len(await cluster.agree(1, 4)) == 50
            status = await admin.change_members(GROUP, [MemberStep(MemberAction.ADD_VOTER, 4)])
            assert status.voters == (1, 2, 3, 4)
            leader = await cluster.wait_for_leader()
            await admin.change_members(GROUP, [MemberStep(MemberAction.REMOVE, leader)])
            await cluster.until(lambda: GROUP not in cluster.hosts[leader].groups())
            await write(client, 50, start=50)
            left = [store for store in (1, 2, 3, 4) if store != leader]
            assert await cluster.agree(*left) == _numbered(100)

    run_cluster(scenario)


def test_stores_are_replaced_together_through_a_joint_configuration() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client(1, 2, 3) as client:
            await write(client, 30)
            cluster.start(4, 5, joins=True)
            await cluster.until(lambda: cluster.has_group(4))
            leader = await cluster.wait_for_leader()
            out = [store for store in (1, 2, 3) if store != leader]
            steps = [MemberStep(MemberAction.ADD_VOTER, store, address(store)) for store in (4, 5)]
            steps += [MemberStep(MemberAction.REMOVE, store) for store in out]
            await client.admin.change_members(GROUP, steps)
            members = tuple(sorted((leader, 4, 5)))
            await cluster.until(lambda: cluster.hosts[4].status(GROUP).voters == members)
            await cluster.until(lambda: not cluster.hosts[4].status(GROUP).is_joint)
            await cluster.until(
                lambda: all(GROUP not in cluster.hosts[store].groups() for store in out)
            )
            await write(client, 30, start=30)
            assert await cluster.agree(*members) == _numbered(60)

    run_cluster(scenario)


def test_a_store_that_missed_its_removal_is_told_when_it_asks_for_votes() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 10)
            leader = await cluster.wait_for_leader()
            away = next(store for store in (1, 2, 3) if store != leader)
            cluster.machines[away].kill()
            await client.admin.change_members(GROUP, [MemberStep(MemberAction.REMOVE, away)])
            cluster.start(away)
            await cluster.until(
                lambda: away in cluster.hosts and GROUP not in cluster.hosts[away].groups()
            )
            await write(client, 10, start=10)

    run_cluster(scenario)


def test_leadership_goes_to_whom_the_operator_names() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 10)
            target = (await cluster.wait_for_leader()) % 3 + 1
            await client.admin.transfer(GROUP, target)
            assert await cluster.wait_for_leader() == target
            await write(client, 10, start=10)
        assert await cluster.agree(1, 2, 3) == _numbered(20)

    run_cluster(scenario)


def test_an_idle_group_sleeps_and_wakes_for_work_and_for_a_lost_leader() -> None:
    settings = msgspec.structs.replace(SETTINGS, quiesce_ticks=10)

    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)

        def asleep() -> bool:
            return all(
                cluster.hosts[store].status(GROUP).is_asleep
                for store in (1, 2, 3)
                if cluster.machines[store].running
            )

        async with cluster.client() as client:
            await write(client, 10)
            await cluster.until(asleep)
            turns = [host._turns.turn_count for host in cluster.hosts.values()]
            await asyncio.sleep(30)
            assert turns == [host._turns.turn_count for host in cluster.hosts.values()]
            assert await client.read(GROUP, b"count", timeout_ms=5_000) == b"10"
            await cluster.until(asleep)
            await write(client, 10, start=10)
            await cluster.until(asleep)
            leader = await cluster.wait_for_leader()
            cluster.machines[leader].power_off()
            await cluster.until(lambda: cluster.leader() not in (0, leader), timeout_s=5.0)
            await write(client, 10, start=20)
            cluster.start(leader)
            assert await cluster.agree(1, 2, 3) == _numbered(30)

    run_cluster(scenario, settings=settings)


def test_the_log_of_a_group_is_read_from_an_index_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            for start in range(0, 60, 20):
                await write(client, 20, start=start)
            await cluster.agree(1, 2, 3)
            host = cluster.hosts[1]
            entries, next_index = await host.read_log(GROUP, 1, bytes_max=100)
            assert entries[0].index == 1
            while next_index <= host.status(GROUP).applied:
                more, next_index = await host.read_log(GROUP, next_index, bytes_max=100)
                entries += more
            assert [each.index for each in entries] == list(range(1, next_index))
            assert sum(bytes(each.payload).endswith(b"line 7") for each in entries) == 1
            with pytest.raises(OutOfRange, match=f"holds entries 1 to {next_index - 1}"):
                await host.read_log(GROUP, next_index + 1)

    run_cluster(scenario)


def test_a_wiped_store_is_not_heard_under_its_old_number() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 10)
            leader = await cluster.wait_for_leader()
            wiped = next(store for store in (1, 2, 3) if store != leader)
            cluster.machines[wiped].power_off()
            cluster.folders[wiped] = "/data/empty"
            cluster.start(wiped)
            await write(client, 10, start=10)
            await asyncio.sleep(10)
            assert cluster.leader() == leader
            assert "another data folder" in cluster.hosts[wiped].halted()[GROUP]

    run_cluster(scenario)


def test_a_group_that_does_not_run_here_is_not_found() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader()
        with pytest.raises(NotFound):
            cluster.hosts[1].status(77)

    run_cluster(scenario)


def test_many_commands_at_once_wait_for_the_sessions_window() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            futures = [
                client.propose(GROUP, b"line %d" % number, timeout_ms=60_000)
                for number in range(3_000)
            ]
            await asyncio.gather(*futures)
        assert sorted(await cluster.agree(1, 2, 3)) == sorted(_numbered(3_000))

    run_cluster(scenario)


def test_a_session_that_ended_is_replaced_by_a_new_one() -> None:
    settings = msgspec.structs.replace(SETTINGS, session_expiry_ms=4_000)

    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 5)
            await cluster.until(lambda: cluster.hosts[1].status(GROUP).sessions == 1)
            await cluster.until(lambda: cluster.hosts[1].status(GROUP).sessions == 0)
            await write(client, 5, start=5)
        assert await cluster.agree(1, 2, 3) == _numbered(10)

    run_cluster(scenario, settings=settings)


def test_a_second_store_with_the_same_number_does_not_silence_the_first() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 10)
            leader = await cluster.wait_for_leader()
            copied = next(store for store in (1, 2, 3) if store != leader)
            impostor = cluster.simulation.add_node("impostor")
            copy = Cluster(cluster.simulation)
            copy.machines[copied], copy.names[copied] = impostor, "impostor"
            copy.start(copied)
            await asyncio.sleep(5)
            third = next(store for store in (1, 2, 3) if store not in (leader, copied))
            cluster.machines[third].kill()
            await write(client, 10, start=10)
            impostor.kill()
            cluster.start(third)
        assert await cluster.agree(1, 2, 3) == _numbered(20)

    run_cluster(scenario)


def test_a_learner_that_starts_anew_in_a_sleeping_group_hears_of_its_leader() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 10)
            cluster.start(4, joins=True)
            step = MemberStep(MemberAction.ADD_LEARNER, 4, address(4))
            await client.admin.change_members(GROUP, [step])
            await cluster.agree(1, 2, 3, 4)
            await cluster.until(
                lambda: all(host.status(GROUP).is_asleep for host in cluster.hosts.values())
            )
            cluster.machines[4].kill()
            cluster.start(4, joins=True)
            await cluster.until(lambda: cluster.has_group(4))
            assert await cluster.hosts[4].read(GROUP, b"count", timeout_ms=3_000) == b"10"

    run_cluster(scenario)


def test_a_new_session_takes_the_place_of_one_that_nobody_uses_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "SESSIONS_MAX", 20)

    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            for number in range(20):
                request = encode_register_request(GROUP, number.to_bytes(16, "little"))
                await client._ask(GROUP, REGISTER, request, cluster.simulation.now + 30)
            await asyncio.sleep(90)
            await write(client, 1)
        leader = await cluster.wait_for_leader()
        assert cluster.hosts[leader].status(GROUP).sessions == 20

    run_cluster(scenario)


def test_what_comes_on_a_connection_without_an_introduction_is_not_heard() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 10)
        leader = await cluster.wait_for_leader()
        host = cluster.hosts[next(store for store in (1, 2, 3) if store != leader)]
        term = host.status(GROUP).term
        heartbeat = Message(MessageKind.HEARTBEAT, host.id, leader, term + 1)
        ((piece,),) = encode_frames([(GROUP, heartbeat, RunCache())])
        frame = bytes(piece)
        host._incoming._on_frame(store_identity(leader), frame)
        assert host.status(GROUP).term == term
        peer = host._peers.get(leader)
        assert peer is not None
        assert peer.voice is not None
        host._incoming._on_frame(peer.voice, frame)
        assert host.status(GROUP).term == term + 1

    run_cluster(scenario)


def test_a_stranger_with_another_folder_than_before_is_refused_when_its_address_comes() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader()
        host = cluster.hosts[1]
        host._book.admit(4, "the folder of before")
        introduction = Introduction("another folder", 7, "")
        stranger = store_identity(4)
        host._incoming._on_introduction(stranger, msgspec.msgpack.encode(introduction))
        host._set_addresses({4: address(4)})
        assert not host._peers.heard(stranger)
        assert cluster.machines[1].running

    run_cluster(scenario)


def test_a_store_is_not_added_with_an_address_that_is_none() -> None:
    for wrong in ("store-four", "s4:", ":7000", "s4:70000"):
        with pytest.raises(InvalidInput, match="is no address"):
            change_of_members([MemberStep(MemberAction.ADD_VOTER, 4, wrong)], {}, ConfState())


def test_a_store_that_cannot_tick_any_more_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader()

        async def fail() -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(cluster.hosts[1]._transfer, "tick", fail)
        await cluster.until(lambda: not cluster.machines[1].running, timeout_s=2)

    run_cluster(scenario)


def test_groups_share_the_memory_for_entries_and_need_none_in_their_sleep() -> None:
    settings = msgspec.structs.replace(
        SETTINGS, entry_cache_bytes_max=8 << 10, host_entry_cache_bytes_max=8 << 10
    )
    groups = (1, 2, 3, 4)

    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            for group in groups:
                await write(client, 400, group=group)
            for host in cluster.hosts.values():
                assert sum(host.status(group).cache_bytes for group in groups) <= 9 << 10
            await cluster.until(
                lambda: all(
                    host.status(group).is_asleep
                    for host in cluster.hosts.values()
                    for group in groups
                )
            )
            for host in cluster.hosts.values():
                assert sum(host.status(group).cache_bytes for group in groups) <= 4 << 10
            await write(client, 20, start=400, group=4)
        assert await cluster.agree(1, 2, 3, group=4) == _numbered(420)

    run_cluster(scenario, settings=settings, groups=groups)


def test_limits_that_do_not_fit_the_log_or_a_frame_are_refused() -> None:
    check_fit(RaftHostSettings(), LogSettings())
    with pytest.raises(InvalidConfiguration, match="a write to the log"):
        check_fit(RaftHostSettings(), LogSettings(segment_bytes=16 << 20))
    with pytest.raises(InvalidConfiguration, match="a frame between stores"):
        check_fit(RaftHostSettings(in_flight_bytes_max=40 << 20), LogSettings())


@pytest.mark.parametrize("seed", range(1, 9))
def test_those_who_are_left_go_on_without_the_leader_that_let_the_others_go(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client(1, 2, 3) as client:
            await write(client, 5)
            cluster.start(4, 5, joins=True)
            await cluster.until(lambda: cluster.has_group(4) and cluster.has_group(5))
            leader = await cluster.wait_for_leader()
            out = [store for store in (1, 2, 3) if store != leader]
            steps = [MemberStep(MemberAction.ADD_VOTER, store, address(store)) for store in (4, 5)]
            steps += [MemberStep(MemberAction.REMOVE, store) for store in out]
            await client.admin.change_members(GROUP, steps)
            await cluster.until(lambda: not any(cluster.has_group(store) for store in out))
        # They know by themselves, also after a start, that the old members are not needed.
        for store in (leader, 4, 5):
            cluster.machines[store].power_off()
        cluster.start(4, 5)
        async with cluster.client(4, 5) as client:
            await write(client, 5, start=5)

    run_cluster(scenario, seed=seed)


def test_a_sleeping_group_whose_leader_was_stopped_wakes_when_a_client_asks() -> None:
    settings = msgspec.structs.replace(SETTINGS, quiesce_ticks=5)

    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 5)
            leader = await cluster.wait_for_leader()
            await cluster.until(
                lambda: all(host.status(GROUP).is_asleep for host in cluster.hosts.values())
            )
            await cluster.hosts[leader].stop_group(GROUP)
            answer = client.propose(GROUP, b"line 5", timeout_ms=15_000)
            assert await answer == b"6"

    run_cluster(scenario, settings=settings)
