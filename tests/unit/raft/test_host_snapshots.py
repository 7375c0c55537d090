"""Snapshots of a running group: received one after another, compacted by two callers at once."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import pytest
from tests.kits.raft import host_cluster
from tests.kits.raft.host_cluster import GROUP, SETTINGS, Cluster, Lines, run_cluster, write

from raftwood.base.errors import Unavailable
from raftwood.raft.snapshot_files import ExtraFileList, SnapshotReader
from raftwood.raft.snapshot_format import SnapshotMeta
from raftwood.raft.snapshotter import SnapshotTransfer
from raftwood.raft.state_machine import Stopped


class SlowLines(Lines):
    """Takes a long time to be restored."""

    async def recover_from_snapshot(
        self,
        chunks: AsyncIterator[bytes],
        files: Mapping[str, str],  # noqa: ARG002
        stopped: Stopped,  # noqa: ARG002
    ) -> None:
        self.lines = []
        async for chunk in chunks:
            self.lines += msgspec.msgpack.decode(chunk, type=list[bytes])
            await asyncio.sleep(0.5)


def test_a_snapshot_that_comes_while_another_is_restored_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            leader = await cluster.wait_for_leader()
            away = next(store for store in (1, 2, 3) if store != leader)
            cluster.machines[away].kill()
            await write(client, 300)
            for store in {1, 2, 3} - {away}:
                await client.admin.snapshot(GROUP, store=store)
            monkeypatch.setattr(host_cluster, "Lines", SlowLines)
            cluster.start(away)
            await cluster.until(
                lambda: (
                    cluster.has_group(away) and cluster.hosts[away]._replicas[GROUP].is_installing
                )
            )
            # Cut off, so that what it needs next is gone from the logs when it is back.
            others = [f"s{store}" for store in (1, 2, 3) if store != away]
            cluster.simulation.network.partition([f"s{away}"], others)
            await write(client, 100, start=300)
            for store in {1, 2, 3} - {away}:
                await client.admin.snapshot(GROUP, store=store)
            cluster.simulation.network.heal()
            host = cluster.hosts[away]
            await cluster.until(lambda: host.status(GROUP).commit >= 400)
            assert host._replicas[GROUP].is_installing, "the first one is still being restored"
            await cluster.until(lambda: not host._replicas[GROUP].is_installing)
            await write(client, 100, start=400)
        lines = await cluster.agree(1, 2, 3)
        assert lines == [b"line %d" % number for number in range(500)]
        assert not cluster.hosts[away].halted()

    run_cluster(scenario)


def test_a_snapshot_that_has_just_been_received_outlives_the_restoring_of_an_older_one() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 20)
        await cluster.agree(1, 2, 3)
        host = cluster.hosts[1]
        index = await host.snapshot(GROUP)
        replica = host._replicas[GROUP]
        snapshot = replica.storage.visible_snapshot
        assert snapshot is not None
        files = host._snapshot_files
        received = SnapshotMeta(GROUP, index + 100, 1, snapshot.configuration, {}, b"")
        await files.save(received, iter([b"state"]), ExtraFileList(), lambda: False)
        await host._snapshotting.installed(replica, snapshot)
        assert [stored.index for stored in files.stored()] == [index, index + 100]

    run_cluster(scenario)


@pytest.mark.parametrize("seed", range(1, 5))
def test_the_log_begins_where_the_later_of_two_compactions_says(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 100)
            first_leader = await cluster.wait_for_leader()
            follower = next(store for store in (1, 2, 3) if store != first_leader)
            await client.admin.transfer(GROUP, follower)
            await write(client, 100, start=100)
        await cluster.agree(1, 2, 3)
        host = cluster.hosts[1]
        index = await host.snapshot(GROUP)
        storage = host._replicas[GROUP].storage
        term = storage.term(index)
        assert storage.term(50) != term
        both = (index, 50) if seed % 2 else (50, index)
        await asyncio.gather(*(host.compact(GROUP, index, log_up_to=each) for each in both))
        assert storage.first_index() == index + 1
        assert storage.state.start_term == term

    run_cluster(scenario, seed=seed)


def test_a_snapshot_arrives_although_others_are_taken_faster_than_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send_piece = SnapshotTransfer._send_piece

    async def send_slowly(transfer: SnapshotTransfer, *piece: Any) -> None:
        await asyncio.sleep(0.5)
        await send_piece(transfer, *piece)

    monkeypatch.setattr(SnapshotTransfer, "_send_piece", send_slowly)
    settings = msgspec.structs.replace(
        SETTINGS, snapshot_entries=200, snapshot_entries_kept=10, snapshot_chunk_bytes=1 << 10
    )

    async def keep_writing(cluster: Cluster) -> None:
        async with cluster.client() as client:
            for start in itertools.count(600, 20):
                await write(client, 20, start=start)
                await asyncio.sleep(0.1)

    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            leader = await cluster.wait_for_leader()
            away = next(store for store in (1, 2, 3) if store != leader)
            cluster.machines[away].kill()
            await write(client, 600)
        cluster.start(away)
        writing = asyncio.create_task(keep_writing(cluster))
        await cluster.until(
            lambda: away in cluster.hosts and cluster.hosts[away]._transfer.received_count > 0,
            timeout_s=30,
        )
        writing.cancel()
        await asyncio.wait([writing])
        lines = await cluster.agree(1, 2, 3)
        # The log was kept for it, and is cut again now.
        async with cluster.client() as client:
            for start in (100_000, 100_200, 100_400):
                await asyncio.sleep(2)
                await write(client, 200, start=start)
        leader = await cluster.wait_for_leader()
        await cluster.until(lambda: cluster.hosts[leader].status(GROUP).first_index > len(lines))

    run_cluster(scenario, settings=settings)


def test_a_snapshot_that_is_removed_while_others_look_for_it_is_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        indexes = []
        async with cluster.client() as client:
            for start in range(0, 40, 20):
                await write(client, 20, start=start)
                await cluster.agree(1, 2, 3)
                indexes.append(await cluster.hosts[1].snapshot(GROUP))
        host = cluster.hosts[1]
        files = host._snapshot_files
        open_as_before = files.open

        async def open_late(group: int, index: int) -> SnapshotReader:
            if index == indexes[0]:
                await host.compact(GROUP, indexes[1])
            return await open_as_before(group, index)

        monkeypatch.setattr(files, "open", open_late)
        replica = host._replicas[GROUP]
        host._chores.verify_snapshots(replica)
        host._chores.verify_snapshots(replica)
        assert len(host._chores._tasks) == 1, "once is enough"
        with pytest.raises(Unavailable, match="meanwhile"):
            await host.compact(GROUP, indexes[0])
        await cluster.until(lambda: not host._chores._tasks)
        assert host.halted() == {}
        assert host.status(GROUP).snapshots == (indexes[1],)

    run_cluster(scenario)
