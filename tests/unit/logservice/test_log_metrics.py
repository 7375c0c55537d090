"""A log store in figures: what its shards did, what they take, and what HAKeeper sees."""

import asyncio
import re

import msgspec
import pytest

from raftwood.logservice.hakeeper.messages import ShardReplicaReport
from raftwood.logservice.hakeeper.state import (
    ClusterPhase,
    KeeperShardState,
    KeeperState,
    StoreState,
)
from raftwood.logservice.server.metrics import shards_by_state, stores_by_state
from raftwood.logservice.settings import HaKeeperSettings
from tests.kits.logservice.log_cluster import SERVICE, LogCluster, run_log_cluster

_SERIES = re.compile(r"^raftwood_(\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


def figures(cluster: LogCluster, store: int) -> dict[tuple[str, str], float]:
    """By name and the value of the label, where there is one."""
    text = cluster.metrics[store].render().decode()
    return {
        (name, (labels or "").partition('"')[2].rstrip('"')): float(figure)
        for name, labels, figure in _SERIES.findall(text)
    }


def test_work_is_counted_where_it_is_done() -> None:
    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        leader = await cluster.wait_for_leader(1)
        async with await cluster.client() as client:
            lsns = await client.append_many([b"%100d" % each for each in range(50)])
            await client.read(lsns[0])
            await client.truncate(lsns[39])
            await asyncio.sleep(2)
        found = figures(cluster, leader)
        assert found["logservice_appends_total", "1"] == 50
        assert found["logservice_append_bytes_total", "1"] > 5_000
        assert found["logservice_append_seconds_count", ""] >= 1
        assert found["logservice_reads_total", "1"] == 1
        assert found["logservice_read_records_total", "1"] == 50
        assert found["logservice_read_bytes_total", "1"] > 5_000
        assert found["logservice_read_seconds_count", ""] == 1
        assert found["logservice_leading", "1"] == 1
        assert found["logservice_leader_changes_total", "1"] == 1
        assert found["logservice_truncated_lsn", "1"] == lsns[39]
        assert 0 < found["logservice_truncation_age_seconds", "1"] < 60
        assert found["logservice_retained_bytes", "1"] > 0
        assert found["logservice_snapshot_bytes", "1"] > 0
        assert found["logservice_snapshots", "1"] >= 1
        assert 0 < found["logservice_snapshot_age_seconds", "1"] < 60
        assert found["logservice_disk_free_bytes", ""] > 0
        assert found["logservice_disk_refusals_total", ""] == 0
        assert found["logservice_alarms", "disk-short"] == 0
        follower = next(store for store in (1, 2, 3) if store != leader)
        elsewhere = figures(cluster, follower)
        assert elsewhere["logservice_appends_total", "1"] == 0
        assert elsewhere["logservice_leading", "1"] == 0

    run_log_cluster(scenario)


def test_a_shard_that_left_the_store_has_no_series() -> None:
    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        leader = await cluster.wait_for_leader(1)
        async with await cluster.client() as client:
            await client.append(b"a")
        await asyncio.sleep(1)
        shards = {label for name, label in figures(cluster, leader) if "appends" in name}
        assert shards == {"1"}
        assert ("logservice_retained_bytes", "1") in figures(cluster, leader)
        await cluster.stores[leader].host.stop_group(1)
        await cluster.stores[leader].truncation.work()
        assert [name for name, label in figures(cluster, leader) if label == "1"] == []

    run_log_cluster(scenario)


def test_hakeeper_is_told_of_by_its_leader_alone() -> None:
    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        await asyncio.sleep(10)
        leader = cluster.leader(0)
        found = figures(cluster, leader)
        assert found["hakeeper_state", ClusterPhase.RUNNING.value] == 1
        assert sum(found["hakeeper_state", phase.value] for phase in ClusterPhase) == 1
        states = ("up", "down", "draining")
        assert [found["hakeeper_stores", each] for each in states] == [3, 0, 0]
        states = ("healthy", "degraded", "leaderless")
        assert [found["hakeeper_shards", each] for each in states] == [2, 0, 0]
        assert [found["hakeeper_services", kind] for kind in ("cn", "tn", "other")] == [0, 0, 0]
        assert found["hakeeper_orders", ""] == 0
        for store in {1, 2, 3} - {leader}:
            told = {name for name, _ in figures(cluster, store) if name.startswith("hakeeper")}
            assert told == {"hakeeper_orders"}
            assert figures(cluster, store)["hakeeper_orders", ""] == 0

    run_log_cluster(scenario)


def test_alarms_and_refusals_are_counted_by_kind() -> None:
    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1)
        await cluster.wait_for_leader(1)
        async with await cluster.client(timeout_ms=1_000) as client:
            with pytest.raises(Exception, match="bytes are free"):
                await client.append(b"a")
        found = figures(cluster, 1)
        assert found["logservice_alarms", "disk-short"] == 1
        assert found["logservice_alarms", "truncation-stalled"] == 0
        assert found["logservice_disk_refusals_total", ""] >= 1

    full = msgspec.structs.replace(SERVICE, disk_alarm_bytes=1 << 60, disk_refuse_bytes=1 << 60)
    run_log_cluster(scenario, first=(1,), service=full)


SETTINGS = HaKeeperSettings(store_down_ticks=10)


def store(heard_tick: int, *, is_draining: bool = False) -> StoreState:
    report = ShardReplicaReport(
        shard=1, epoch=3, voters=(1, 2, 3), learners=(), leader=1, term=2, applied=9
    )
    return StoreState("", "", "", "", heard_tick, {1: report}, is_draining=is_draining)


@pytest.mark.parametrize(
    ("heard", "stores", "shards"),
    [
        pytest.param((100, 100, 100), (2, 0, 1), (1, 0, 0), id="all"),
        pytest.param((100, 100, 50), (2, 1, 0), (0, 1, 0), id="one silent"),
        pytest.param((50, 100, 100), (1, 1, 1), (0, 0, 1), id="leader silent"),
    ],
)
def test_stores_and_shards_are_counted_by_state(
    heard: tuple[int, int, int], stores: tuple[int, ...], shards: tuple[int, ...]
) -> None:
    shard = KeeperShardState(
        "a", 3, 0, 1, epoch=3, voters=(1, 2, 3), leader=1, term=2, leader_tick=100
    )
    state = KeeperState(
        tick=100,
        stores={1: store(heard[0]), 2: store(heard[1]), 3: store(heard[2], is_draining=True)},
        shards={1: shard},
    )
    assert tuple(stores_by_state(state, SETTINGS).values()) == stores
    assert tuple(shards_by_state(state, SETTINGS).values()) == shards
