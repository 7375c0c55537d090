"""Stores that an older version wrote are taken over; those of a newer one are refused."""

import io
import tarfile
from pathlib import Path

import pytest
from tests.kits.raft.host_cluster import NETWORK, Cluster, Lines, address, run_cluster, write
from tests.kits.running import run

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.errors import UnsupportedVersion
from raftwood.base.files import Operation, perform
from raftwood.disk import store as folder_format
from raftwood.disk.real_environment import real_environment
from raftwood.disk.segment_log import SetState
from raftwood.disk.segment_log import format as log_format
from raftwood.disk.store import Store
from raftwood.raft import snapshot_format
from raftwood.raft.core import ConfState
from raftwood.raft.group_log import STATE_VERSION, first_state
from raftwood.raft.membership import MemberAction, MemberStep
from raftwood.raft.node_host import NodeHost
from raftwood.raft.snapshot_files import ExtraFileList, SnapshotFiles
from raftwood.raft.snapshot_format import SnapshotMeta

FIXTURE = Path(__file__).parents[2] / "fixtures/store-version-1/stores.tar.gz"
FOLDER = "/data/store"
OLD_LINES = [b"line %d" % number for number in range(1, 61)]


def _old_store(store: int) -> dict[str, bytes]:
    """Files of one store of the fixture, by path in its folder."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(FIXTURE.read_bytes())) as archive:
        for member in archive:
            file = archive.extractfile(member)
            place = member.name.partition(f"store-{store}/")[2]
            if file is not None and place:
                found[place] = file.read()
    return found


async def _put(environment: Environment, content: dict[str, bytes]) -> None:
    operations: list[Operation] = [seam.MakeDirectory(f"{FOLDER}/log")]
    for place, data in content.items():
        path = f"{FOLDER}/{place}"
        operations += [
            seam.Open(path, create=True),
            seam.Write(path, 0, [data]),
            seam.DataSync(path),
            seam.Close(path),
        ]
    folders = ("/data", FOLDER, f"{FOLDER}/log")
    await perform(environment.files, *operations, *map(seam.SyncDirectory, folders))


async def _place_old_stores(cluster: Cluster) -> None:
    for store in (1, 2, 3):
        content = _old_store(store)

        async def program(environment: Environment, content: dict[str, bytes] = content) -> None:
            await _put(environment, content)

        machine = cluster.machines[store] = cluster.simulation.add_node(f"s{store}")
        machine.start(program)
    await cluster.until(lambda: not any(each.running for each in cluster.machines.values()))


def _is_told(cluster: Cluster, group: int) -> bool:
    return all(
        cluster.has_group(store, group)
        and not cluster.hosts[store]._replicas[group].storage.state.voters
        for store in (1, 2, 3)
    )


async def _add(cluster: Cluster, group: int, store: int) -> None:
    async with cluster.client() as client:
        for action in (MemberAction.ADD_LEARNER, MemberAction.ADD_VOTER):
            step = MemberStep(action, store, address(store))
            status = await client.admin.change_members(group, [step])
            assert status.voters[:3] == (1, 2, 3)


def test_stores_of_version_1_go_on_with_all_entries_and_members() -> None:
    async def scenario(cluster: Cluster) -> None:
        await _place_old_stores(cluster)
        cluster.start(1, 2, 3)
        assert await cluster.agree(1, 2, 3) in (OLD_LINES, OLD_LINES[:40], [])
        async with cluster.client() as client:
            await write(client, 40, start=61)
            lines = await cluster.agree(1, 2, 3)
            assert lines == [*OLD_LINES, *(b"line %d" % number for number in range(61, 101))]
            await write(client, 10, group=2)
            await cluster.until(lambda: _is_told(cluster, 1) and _is_told(cluster, 2))
            for group in (1, 2):
                for store in (1, 2, 3):
                    assert cluster.hosts[store].status(group).voters == (1, 2, 3)
            for store in (1, 2, 3):
                cluster.machines[store].power_off()
            cluster.start(1, 2, 3)
            await write(client, 10, start=101)
        assert await cluster.agree(1, 2, 3) == [b"line %d" % number for number in range(1, 111)]

    for seed in range(1, 4):
        run_cluster(scenario, seed=seed, groups=(1, 2))


@pytest.mark.parametrize("group", [1, 2])
def test_a_store_that_joins_a_group_of_version_1_learns_its_members(group: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await _place_old_stores(cluster)
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 5, start=61, group=group)
        leader = await cluster.wait_for_leader(group)
        await cluster.until(lambda: _is_told(cluster, group))
        cluster.start(4, joins=True)
        await _add(cluster, group, 4)
        lines = await cluster.agree(leader, 4, group=group)
        assert lines[-1] == b"line 65"
        await cluster.until(lambda: cluster.hosts[4].status(group).voters == (1, 2, 3, 4))

    run_cluster(scenario, groups=(1, 2))


def test_a_change_waits_until_the_members_of_version_1_are_told() -> None:
    """In a log of version 1 a joiner would find no members but itself."""

    async def scenario(cluster: Cluster) -> None:
        await _place_old_stores(cluster)
        cluster.start(1, 2, 3)
        cluster.start(4, joins=True)
        await cluster.wait_for_leader(2)
        await _add(cluster, 2, 4)
        await cluster.until(lambda: cluster.has_group(4, 2))
        await cluster.until(lambda: cluster.hosts[4].status(2).voters == (1, 2, 3, 4))

    for seed in range(1, 6):
        run_cluster(scenario, seed=seed, groups=(2,))


@pytest.mark.parametrize("what", ["identity", "log", "snapshot", "state"])
def test_what_a_newer_version_wrote_is_refused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def write_newer(environment: Environment) -> None:
        with monkeypatch.context() as patch:
            if what == "identity":
                patch.setattr(folder_format, "VERSION", 2)
            elif what == "log":
                patch.setattr(log_format, "VERSION", 2)
            store = await Store.open(environment, FOLDER, cluster="test", store=1)
            state = first_state()
            if what == "state":
                state = state.__class__(STATE_VERSION + 1, 1, 1, 0)
            await store.log.commit(SetState(1, state.encoded()))
            if what == "snapshot":
                patch.setattr(snapshot_format, "VERSION", 2)
                files = await SnapshotFiles.recover(environment.files, f"{FOLDER}/snapshots")
                meta = SnapshotMeta(1, 5, 1, ConfState((1,)), {})
                await files.save(meta, iter([b"state"]), ExtraFileList(), lambda: False)
            await store.close()

    async def scenario(cluster: Cluster) -> None:
        machine = cluster.machines[1] = cluster.simulation.add_node("s1")
        machine.start(write_newer)
        await cluster.until(lambda: not machine.running)
        errors: list[UnsupportedVersion] = []
        program = cluster._program(1, joins=False)

        async def refused(environment: Environment) -> None:
            try:
                await program(environment)
            except UnsupportedVersion as error:
                errors.append(error)

        machine.start(refused)
        await cluster.until(lambda: not machine.running)
        assert "newer" in errors[0].message or "wrote it" in errors[0].message

    run_cluster(scenario)


def test_a_folder_of_version_1_on_a_real_disk_is_opened(tmp_path: Path) -> None:
    for place, data in _old_store(1).items():
        path = tmp_path / "store" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    members = {store: f"127.0.0.1:{store}" for store in (1, 2, 3)}

    async def main() -> None:
        with real_environment() as environment:
            host = await NodeHost.open(
                environment, str(tmp_path / "store"), cluster="test", store=1, network=NETWORK
            )
            try:
                await host.start_group(1, Lines, members=members)
                # What is known to be committed is applied; the rest waits for a quorum.
                assert host.stale_read(1, b"count") == b"55"
                assert host.status(1).last_index == 60
                assert host.status(1).voters == (1, 2, 3)
            finally:
                await host.close()

    run(main())
