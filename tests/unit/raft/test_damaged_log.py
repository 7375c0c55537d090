"""A store whose log is damaged at its start is filled by its peers, and nothing acked is lost."""

import asyncio
import random
from collections.abc import Callable

import msgspec
import pytest
from tests.damage.cells import put
from tests.kits.models import Plant, replaced
from tests.kits.raft.damage import (
    STORE,
    HaltingCluster,
    files_of,
    is_whole,
    log_files,
    wait_repaired,
)
from tests.kits.raft.damaged_stores import lose_log, zero_tail
from tests.kits.raft.host_cluster import GROUP, SETTINGS, Cluster, Lines, address, run_cluster

from raftwood.base.errors import StoreDamaged
from raftwood.net import Service
from raftwood.raft.client import AsyncRaftClient
from raftwood.raft.group_log import GroupState
from raftwood.raft.log_ends import LogEnds
from raftwood.raft.membership import MemberAction, MemberStep
from raftwood.raft.repair import REPAIR, Repairs, RepairService
from raftwood.testing import Machine

_LINE = b"line %d " + b"." * 400
_CHOSEN = random.Random(1)
_Damage = Callable[[Machine, str, random.Random], None]


def _lines(count: int) -> list[bytes]:
    return [_LINE % number for number in range(count)]


async def _write(client: AsyncRaftClient, count: int, *, start: int = 0) -> None:
    for line in _lines(start + count)[start:]:
        await client.propose(GROUP, line, timeout_ms=30_000)


def _newest_with_data(machine: Machine) -> str:
    """The newest segment that holds lines."""
    contents = machine.disk.file_system.contents
    return [path for path in log_files(machine, ".segment") if b"line " in contents(path)][-1]


def _delete(machine: Machine, path: str, _: random.Random) -> None:
    machine.disk.lose(path)


def _damage(cluster: Cluster, *stores: int, kind: _Damage = _delete) -> None:
    for store in stores:
        machine = cluster.machines[store]
        kind(machine, _newest_with_data(machine), _CHOSEN)


async def _two_segments(cluster: Cluster, *, away: int = 0) -> None:
    """300 lines over two segments, 280 of them without one store; then all are stopped."""
    cluster.start(*cluster.members)
    async with cluster.client() as client:
        await _write(client, 20)
        await cluster.agree(*cluster.members)
        if away:
            await cluster.stop(away)
        await _write(client, 280, start=20)
        if not away:
            await cluster.agree(*cluster.members)
    await cluster.stop()


async def _issue(cluster: Cluster, kind: _Damage) -> None:
    """Two of three stores have acked, and one of them is damaged; it starts with the third."""
    await _two_segments(cluster, away=3)
    _damage(cluster, 1, kind=kind)
    cluster.start(1, 3)
    await asyncio.sleep(20)
    assert cluster.leader() == 0, "store 3 lacks what was acked, and store 1 has no vote"
    status = cluster.hosts[1].status(GROUP)
    assert status.role == "halted"
    assert "log" in status.problem
    cluster.start(2)
    await wait_repaired(cluster, 1)
    assert await cluster.agree(1, 2, 3) == _lines(300)
    assert cluster.hosts[1].logs_aside == [f"{STORE}/log"]


@pytest.mark.parametrize("kind", [_delete, zero_tail, lose_log])
def test_what_two_stores_acked_survives_the_damage_of_one_whichever_starts_first(
    kind: _Damage,
) -> None:
    run_cluster(lambda cluster: _issue(cluster, kind))


async def _not_begun(*_: object) -> bool:
    return False


_BEGINS_AS_IT_WAS = replaced(GroupState, is_without_replica=property(lambda _: False))
_FOUNDS_ANEW = replaced(Repairs, _has_begun=_not_begun)


@pytest.mark.parametrize(
    ("mutant", "kind"), [(_BEGINS_AS_IT_WAS, _delete), (_FOUNDS_ANEW, lose_log)]
)
def test_a_store_that_takes_part_before_it_has_learnt_is_caught(
    mutant: Plant, kind: _Damage
) -> None:
    with mutant(), pytest.raises(AssertionError):
        run_cluster(lambda cluster: _issue(cluster, kind))


def test_stores_of_release_0_1_0_fill_a_store_that_has_lost_its_log() -> None:
    """They know neither the question for the ends of logs nor that for a group's beginning."""

    def as_before(self: RepairService, service: Service) -> None:
        service.typed(REPAIR, self._on_request)

    async def scenario(cluster: Cluster) -> None:
        await _two_segments(cluster)
        _damage(cluster, 1, kind=lose_log)
        with (
            replaced(LogEnds, register=lambda *_: None)(),
            replaced(RepairService, register=as_before)(),
        ):
            cluster.start(2, 3)
            await cluster.wait_for_leader()
        cluster.start(1)
        await wait_repaired(cluster, 1)
        assert await cluster.agree(1, 2, 3) == _lines(300)
        assert cluster.hosts[1].status(GROUP).voters == (1, 2, 3)

    run_cluster(scenario)


def test_setting_a_log_aside_goes_on_after_a_crash_at_any_time() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _two_segments(cluster)
        _damage(cluster, 1)
        cluster.start(2, 3)
        crashes = 0
        for pause_us in range(200, 20_000, 400):
            cluster.start(1)
            await asyncio.sleep(pause_us / 1e6)
            cluster.machines[1].power_off()
            crashes += 1
            if cluster.machines[1].disk.file_system.files.keys() & {f"{STORE}/log-3/HORIZON"}:
                raise AssertionError("one damage was set aside twice")
        assert crashes > 20
        cluster.start(1)
        await wait_repaired(cluster, 1)
        assert await cluster.agree(1, 2, 3) == _lines(300)

    for seed in range(1, 4):
        run_cluster(scenario, seed=seed)


def test_a_log_is_set_aside_twice_and_not_a_third_time() -> None:
    async def scenario(cluster: Cluster) -> None:
        assert isinstance(cluster, HaltingCluster)
        await _two_segments(cluster)
        cluster.start(2, 3)
        for round_ in range(2):
            _damage(cluster, 1)
            cluster.start(1)
            await wait_repaired(cluster, 1)
            assert len(cluster.hosts[1].logs_aside) == round_ + 1
            await cluster.agree(1, 2, 3)
            await cluster.stop(1)
        _damage(cluster, 1)
        cluster.start(1)
        await cluster.until(lambda: 1 in cluster.halts)
        assert f"{STORE}/log and {STORE}/log-2 were damaged before" in cluster.halts[1]
        for path in files_of(cluster.machines[1], ""):
            if path.startswith((f"{STORE}/log/", f"{STORE}/log-2/")):
                cluster.machines[1].disk.lose(path)
        for path in (f"{STORE}/log", f"{STORE}/log-2"):
            del cluster.machines[1].disk.file_system.directories[path]
        cluster.start(1)
        await wait_repaired(cluster, 1)
        assert await cluster.agree(1, 2, 3) == _lines(300)

    run_cluster(scenario, cluster_type=HaltingCluster)


def test_an_identity_from_a_backup_brings_no_damaged_log_back() -> None:
    """All stores had a damaged log set aside since: the old names would cost all three the new."""

    async def scenario(cluster: Cluster) -> None:
        await _two_segments(cluster)
        cluster.start(*cluster.members)
        older: dict[int, bytes] = {}
        for store in cluster.members:
            await cluster.agree(*cluster.members)
            await cluster.stop(store)
            machine = cluster.machines[store]
            older[store] = bytes(machine.disk.file_system.contents(f"{STORE}/IDENTITY"))
            _damage(cluster, store)
            cluster.start(store)
            await wait_repaired(cluster, store)
        await cluster.agree(*cluster.members)
        await cluster.stop(*cluster.members)
        for store in cluster.members:
            put(cluster.machines[store].disk.file_system, f"{STORE}/IDENTITY", older[store])
        cluster.start(*cluster.members)
        assert await cluster.agree(*cluster.members) == _lines(300)

    run_cluster(scenario)


def test_a_store_without_peers_refuses_and_names_the_file_and_the_backup() -> None:
    async def scenario(cluster: Cluster) -> None:
        assert isinstance(cluster, HaltingCluster)
        await _two_segments(cluster)
        path = _newest_with_data(cluster.machines[1])
        _damage(cluster, 1)
        cluster.start(1)
        await cluster.until(lambda: 1 in cluster.halts)
        assert path in cluster.halts[1]
        assert "at offset 0" in cluster.halts[1]
        assert "from a backup" in cluster.halts[1]
        assert not [each for each in files_of(cluster.machines[1], "") if "/log-2/" in each]

    run_cluster(scenario, cluster_type=HaltingCluster, members=(1,))


def test_a_setting_lets_a_store_refuse_instead() -> None:
    async def scenario(cluster: Cluster) -> None:
        assert isinstance(cluster, HaltingCluster)
        await _two_segments(cluster)
        _damage(cluster, 1)
        cluster.start(1)
        await cluster.until(lambda: 1 in cluster.halts)
        assert "raft.repair_log=true" in cluster.halts[1]

    settings = msgspec.structs.replace(SETTINGS, repair_log=False)
    run_cluster(scenario, cluster_type=HaltingCluster, settings=settings)


def test_the_other_voter_of_two_cannot_repair_and_the_status_names_the_command() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _two_segments(cluster)
        _damage(cluster, 1)
        cluster.start(1, 2)
        await asyncio.sleep(60)
        assert cluster.leader() == 0
        status = cluster.hosts[1].status(GROUP)
        assert status.role == "halted"
        assert "only one other voter" in status.problem
        assert "raftwood raft recover" in status.problem

    run_cluster(scenario, members=(1, 2))


def test_with_two_of_three_damaged_the_group_waits_for_an_operator() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _two_segments(cluster, away=3)
        _damage(cluster, 1, 2)
        cluster.start(1, 2, 3)
        await asyncio.sleep(60)
        assert cluster.leader() == 0
        assert all("raft recover" in cluster.hosts[each].halted()[GROUP] for each in (1, 2))

    run_cluster(scenario)


def test_a_learner_whose_log_was_damaged_comes_back_as_a_learner() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        cluster.start(4, joins=True)
        await cluster.wait_for_leader()
        async with cluster.client(1, 2, 3) as client:
            step = MemberStep(MemberAction.ADD_LEARNER, 4, address(4))
            await client.admin.change_members(GROUP, [step])
            await _write(client, 300)
        await cluster.agree(1, 2, 3, 4)
        await cluster.stop(4)
        _damage(cluster, 4)
        cluster.start(4, joins=True)
        await cluster.until(lambda: cluster.has_group(4))
        assert await cluster.agree(1, 2, 3, 4) == _lines(300)
        await asyncio.sleep(10)
        assert cluster.hosts[4].status(GROUP).learners == (4,)

    run_cluster(scenario)


def test_a_store_that_had_joined_a_group_and_lost_all_records_of_it_is_a_voter_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        cluster.start(4, joins=True)
        await cluster.wait_for_leader()
        async with cluster.client(1, 2, 3) as client:
            step = MemberStep(MemberAction.ADD_VOTER, 4, address(4))
            await client.admin.change_members(GROUP, [step])
            await _write(client, 20)
            await cluster.agree(1, 2, 3, 4)
            await cluster.stop(4)
            _damage(cluster, 4, kind=lose_log)
            cluster.start(4, joins=True)
            await wait_repaired(cluster, 4)
        assert await cluster.agree(1, 2, 3, 4) == _lines(20)
        assert cluster.hosts[4].status(GROUP).voters == (1, 2, 3, 4)

    run_cluster(scenario)


def test_new_groups_are_founded_also_where_all_stores_have_lost_their_logs_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _two_segments(cluster)
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader()
        for store in (1, 2, 3):
            await cluster.stop(store)
            _damage(cluster, store)
            cluster.start(store)
            await wait_repaired(cluster, store)
            await cluster.agree(1, 2, 3)
        for host in cluster.hosts.values():
            await host.start_group(7, Lines, members=cluster.members)
        for store in (1, 2):
            pair = {each: address(each) for each in (1, 2)}
            await cluster.hosts[store].start_group(8, Lines, members=pair)
        for group in (7, 8):
            await cluster.wait_for_leader(group)
        with pytest.raises(StoreDamaged, match="only member of group 9"):
            await cluster.hosts[1].start_group(9, Lines, members={1: address(1)})
        assert 9 not in cluster.hosts[1].halted()

    run_cluster(scenario)


def test_a_store_that_lost_its_log_joins_groups_once_they_name_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client(1, 2, 3) as client:
            await _write(client, 300)
            cluster.start(4, joins=True)
            step = MemberStep(MemberAction.ADD_VOTER, 4, address(4))
            await client.admin.change_members(GROUP, [step])
            await cluster.agree(1, 2, 3, 4)
            await cluster.stop(4)
            step = MemberStep(MemberAction.REMOVE, 4)
            await client.admin.change_members(GROUP, [step])
            _damage(cluster, 4)
            cluster.start(4, joins=True)
            await cluster.until(lambda: 4 in cluster.hosts and not cluster.hosts[4].halted())
            # The group has no replica here and no repair: it may be started again at once.
            await cluster.hosts[4].start_group(GROUP, Lines)
            await asyncio.sleep(10)
            assert "does not name store 4" in cluster.hosts[4].status(GROUP).problem
            await cluster.stop(4)
            cluster.start(4, joins=True)
            await asyncio.sleep(10)
            assert "does not name store 4" in cluster.hosts[4].status(GROUP).problem
            step = MemberStep(MemberAction.ADD_VOTER, 4, address(4))
            await client.admin.change_members(GROUP, [step])
        await cluster.until(lambda: is_whole(cluster, 4))
        assert await cluster.agree(1, 2, 3, 4) == _lines(300)

    run_cluster(scenario)
