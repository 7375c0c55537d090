"""Snapshot files that are missing at a restart: repaired from the others, or told, never silent."""

from pathlib import Path

import pytest

from raftwood.base.errors import DeadlineExceeded
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.hakeeper.alarm import AlarmKind
from raftwood.logservice.hakeeper.views import ClusterView
from tests.cluster.logservice.load import read_all
from tests.cluster.logservice.processes import LogNode, LogProcesses, is_running_well, log_stores
from tests.running import run

_DAMAGED = "replica is damaged"


def lose_snapshots(node: LogNode, shard: int) -> None:
    files = list((node.folder / "snapshots").glob(f"{shard}-*"))
    assert files
    for file in files:
        file.unlink()


async def cut_log(stores: LogProcesses, client: AsyncLogClient) -> list[int]:
    """Append and truncate until every store needs its snapshot; the LSNs that are kept."""
    lsns = []
    for _ in range(10):
        lsns += await client.append_many([b"a record"] * 20)
        await client.truncate(lsns[-10])
    for node in stores.nodes.values():
        await node.says("log cut")
    return lsns[-9:]


def is_whole(view: ClusterView) -> bool:
    problems = [alarm for alarm in view.alarms if alarm.kind is AlarmKind.REPLICA_PROBLEM]
    lagging = [lag for shard in view.shards for lag in shard.lagging.values()]
    return is_running_well(view) and not problems and max(lagging) < 10


def test_a_store_without_its_snapshots_is_repaired_from_the_others(tmp_path: Path) -> None:
    async def body() -> None:
        async with log_stores(tmp_path, settings={"logservice.truncation_ms": 20}) as stores:
            await stores.start()
            await stores.runs()
            client = await stores.client()
            kept = await cut_log(stores, client)
            await stores.kill(3)
            for shard in (0, 1):
                lose_snapshots(stores.nodes[3], shard)
            await stores.start(3)
            stores.expected_errors = (_DAMAGED,)
            await stores.nodes[3].says(_DAMAGED, times=2)
            await stores.nodes[3].says("replica repaired", times=2)
            await stores.seen("store 3 in good health", is_whole)
            # With two stores, all that is decided is on the repaired one.
            await stores.kill(1)
            kept.append(await client.append(b"one more"))
            found = [record.lsn for record in await read_all(client, kept[0])]
            assert found == kept
            await stores.start(1)

    run(body())


def test_a_shard_whose_snapshots_are_all_lost_says_so(tmp_path: Path) -> None:
    async def body() -> None:
        async with log_stores(tmp_path, settings={"logservice.truncation_ms": 20}) as stores:
            await stores.start()
            await stores.runs()
            client = await stores.client()
            await cut_log(stores, client)
            impatient = await stores.client(timeout_ms=500)
            await stores.kill(*stores.first)
            for node in stores.nodes.values():
                lose_snapshots(node, 1)
            await stores.start()
            await stores.seen(
                "replicas with a problem",
                lambda view: (
                    sum(alarm.kind is AlarmKind.REPLICA_PROBLEM for alarm in view.alarms) == 3
                ),
            )
            stores.expected_errors = (_DAMAGED,)
            with pytest.raises(DeadlineExceeded, match="a snapshot is missing"):
                await stores.client(timeout_ms=500)
            with pytest.raises(DeadlineExceeded, match="a snapshot is missing"):
                await impatient.append(b"nowhere to go")

    run(body())
