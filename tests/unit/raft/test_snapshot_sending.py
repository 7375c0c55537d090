"""When a snapshot cannot be sent: not again at once, but soon enough."""

from typing import Any

import pytest
from tests.kits.raft.host_cluster import GROUP, Cluster, run_cluster, write

from raftwood.base.errors import DiskFull
from raftwood.raft.snapshot_files import SnapshotFiles


def test_a_store_without_room_is_not_offered_snapshots_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offers = 0
    is_full = True
    begin_receive = SnapshotFiles.begin_receive

    async def refuse(self: SnapshotFiles, **announced: Any) -> Any:
        nonlocal offers
        offers += 1
        if is_full:
            raise DiskFull("no room for the snapshot: free space on the disk")
        return await begin_receive(self, **announced)

    monkeypatch.setattr(SnapshotFiles, "begin_receive", refuse)

    async def scenario(cluster: Cluster) -> None:
        nonlocal is_full
        cluster.start(1, 2, 3)
        simulation = cluster.simulation
        async with cluster.client() as client:
            leader = await cluster.wait_for_leader()
            away = leader % 3 + 1
            cluster.machines[away].kill()
            await write(client, 300)
            for store in {1, 2, 3} - {away}:
                await client.admin.snapshot(GROUP, store=store)
            cluster.start(away)
            await cluster.until(lambda: offers > 0)
            began = simulation.now
            await cluster.until(lambda: simulation.now > began + 10)
            assert 5 <= offers <= 21
            is_full = False
            began = simulation.now
            await cluster.agree(1, 2, 3)
            assert simulation.now - began < 2.5

    run_cluster(scenario)
