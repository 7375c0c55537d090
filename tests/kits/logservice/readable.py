"""A log that is filled, truncated and restarted, and what must be readable of it."""

import asyncio

import msgspec
import pytest

from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.errors import LsnTruncated
from raftwood.testing import Simulation
from tests.kits.logservice.log_cluster import LogCluster
from tests.kits.logservice.simulation.world import CALM_KEEPER, DISK_LOG, RAFT, SMALL

SHARD = 1
STORES = (1, 2, 3)
RECORDS = 200
TRUNCATED = 100
"""This many records; their LSNs are higher by what the group itself wrote."""


def payload(number: int) -> bytes:
    return b"record %d" % number


async def fill(client: AsyncLogClient, lsns: list[int], up_to: int) -> None:
    """Append in small portions, so that there are snapshots in between."""
    while len(lsns) < up_to:
        numbers = range(len(lsns), min(up_to, len(lsns) + 20))
        lsns += await client.append_many([payload(number) for number in numbers])
        await asyncio.sleep(0.35)


async def check_readable(client: AsyncLogClient, lsns: list[int], *, truncated: int) -> None:
    """What was truncated is gone, and what was not is all there."""
    with pytest.raises(LsnTruncated) as gone:
        await client.read(lsns[truncated - 1])
    assert gone.value.first == lsns[truncated - 1] + 1
    found = {}
    first = gone.value.first
    while True:
        records, next_lsn = await client.read(first)
        found.update({record.lsn: bytes(record.payload) for record in records})
        if next_lsn == first:
            break
        first = next_lsn
    assert found == {lsn: payload(number) for number, lsn in enumerate(lsns) if number >= truncated}


def restart(cluster: LogCluster, *stores: int) -> None:
    for store in stores:
        if cluster.machines[store].running:
            cluster.machines[store].power_off()
    cluster.start(*stores)


def truncating_cluster(simulation: Simulation) -> LogCluster:
    service = msgspec.structs.replace(SMALL, snapshot_entries=20)
    return LogCluster(simulation, service=service, keeper=CALM_KEEPER, raft=RAFT, log=DISK_LOG)


def first_index(cluster: LogCluster, store: int) -> int:
    if not cluster.is_running(store) or SHARD not in cluster.stores[store].host.groups():
        return 0
    return cluster.stores[store].host.status(SHARD).first_index
