"""Snapshot files that are missing at a restart: repaired from the others, or told, never silent."""

from pathlib import Path

import pytest

from raftwood.base.errors import DeadlineExceeded
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.hakeeper.commands import ClusterView
from raftwood.logservice.hakeeper.messages import AlarmKind
from tests.kits.logservice.load import cut_log, read_all
from tests.kits.logservice.processes import (
    LogNode,
    LogProcesses,
    is_running_well,
    log_stores,
    shard_of,
)
from tests.kits.running import run

_DAMAGED = "replica is damaged"
_DAMAGED_SHARDS = (0, 1)
_LAG_MAX = 10
_IMPATIENT_MS = 30_000
"""Enough for an answer of a store on a busy machine."""


def lose_snapshots(node: LogNode, shard: int) -> None:
    files = list((node.folder / "snapshots").glob(f"{shard}-*"))
    assert files
    for file in files:
        file.unlink()


def is_whole(view: ClusterView) -> bool:
    problems = [alarm for alarm in view.alarms if alarm.kind is AlarmKind.REPLICA_PROBLEM]
    # Who has not answered a new leader yet is not told of.
    lags = [
        shard.lagging.get(store, _LAG_MAX)
        for shard in view.shards
        for store in shard.voters
        if store != shard.leader
    ]
    return is_running_well(view) and not problems and max(lags) < _LAG_MAX


def epochs(view: ClusterView) -> dict[int, int]:
    return {shard: shard_of(view, shard).epoch for shard in _DAMAGED_SHARDS}


async def one_store_is_repaired(stores: LogProcesses, client: AsyncLogClient) -> None:
    kept = await cut_log(client, stores.nodes.values())
    await stores.nodes[3].says("log cut", shard=0)
    before = epochs(await stores.runs())
    await stores.kill(3)
    for shard in _DAMAGED_SHARDS:
        lose_snapshots(stores.nodes[3], shard)
    await stores.start(3)
    for shard in _DAMAGED_SHARDS:
        await stores.nodes[3].says(_DAMAGED, group=shard)

    def is_repaired(view: ClusterView) -> bool:
        # It left and came back, by its own repair or because HAKeeper wants three voters.
        after = epochs(view)
        return is_whole(view) and all(after[each] > before[each] for each in before)

    await stores.seen("store 3 in good health", is_repaired)
    # With two stores, all that is decided is on the repaired one.
    await stores.kill(1)
    kept.append(await client.append(b"one more"))
    found = [record.lsn for record in await read_all(client, kept[0])]
    assert found == kept
    await stores.start(1)
    await stores.runs()


async def a_shard_is_lost(stores: LogProcesses, client: AsyncLogClient) -> None:
    await cut_log(client, stores.nodes.values())
    impatient = await stores.client(timeout_ms=_IMPATIENT_MS)
    await stores.kill(*stores.first)
    for node in stores.nodes.values():
        lose_snapshots(node, 1)
    await stores.start()
    await stores.seen(
        "replicas with a problem",
        lambda view: sum(alarm.kind is AlarmKind.REPLICA_PROBLEM for alarm in view.alarms) == 3,
    )
    with pytest.raises(DeadlineExceeded, match="a snapshot is missing"):
        await impatient.append(b"nowhere to go")


def test_lost_snapshots_are_repaired_from_other_stores_and_told_where_all_are_lost(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with log_stores(tmp_path, settings={"logservice.truncation_ms": 20}) as stores:
            stores.expected_errors = (_DAMAGED,)
            await stores.start()
            await stores.runs()
            client = await stores.client()
            await one_store_is_repaired(stores, client)
            await a_shard_is_lost(stores, client)

    run(body())
