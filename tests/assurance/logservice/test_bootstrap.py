"""The first stores set a cluster up by themselves, in whatever order they come."""

import asyncio
import itertools
import random

import pytest

from raftwood.logservice.hakeeper.state import ClusterPhase
from raftwood.testing import Simulation, simulate
from tests.kits.logservice.log_cluster import LogCluster
from tests.kits.logservice.simulation.world import CALM_KEEPER, DISK_LOG, RAFT, SMALL

SPREAD_S = 30.0
READY_S = 90.0
ORDERS = list(itertools.permutations((1, 2, 3)))


async def come_up(cluster: LogCluster, order: list[int], source: random.Random) -> None:
    """Start stores one after another, over half a minute at the most."""
    moments = sorted(source.uniform(0, SPREAD_S) for _ in order)
    began = cluster.simulation.now
    for store, moment in zip(order, moments, strict=True):
        await asyncio.sleep(max(0.0, began + moment - cluster.simulation.now))
        cluster.start(store)


def is_kept_by_three(cluster: LogCluster) -> bool:
    """HAKeeper has three voters, which run, and nobody else has a replica."""
    keepers = [
        store
        for store, each in cluster.stores.items()
        if cluster.is_running(store) and 0 in each.host.groups()
    ]
    leader = cluster.leader(0)
    if len(keepers) != 3 or not leader:
        return False
    return sorted(cluster.stores[leader].host.status(0).voters) == sorted(keepers)


async def check_ready(cluster: LogCluster) -> None:
    """Running, led, with three replicas of HAKeeper, and appends work."""
    await cluster.until(lambda: cluster.leader(1) != 0, timeout_s=READY_S)
    async with await cluster.client() as client:
        lsns = await client.append_many([b"%d" % number for number in range(10)])
        records, _ = await client.read(lsns[0])
        assert [record.lsn for record in records] == lsns
    operator = cluster.operator()
    deadline = cluster.simulation.now + READY_S
    while (view := await operator.describe()).phase is not ClusterPhase.RUNNING:
        assert cluster.simulation.now < deadline, view.phase
        await asyncio.sleep(0.5)
    await operator.close()
    await cluster.until(lambda: is_kept_by_three(cluster), timeout_s=READY_S)


@pytest.mark.parametrize(
    ("first", "seed", "is_one_missing"),
    [
        *((3, seed, False) for seed in range(6)),
        (3, 1, True),
        *((4, seed, seed % 2 == 1) for seed in range(3)),
        *((5, seed, seed % 2 == 1) for seed in range(3)),
    ],
)
def test_first_stores_set_themselves_up_in_any_order(
    first: int, seed: int, is_one_missing: bool
) -> None:
    source = random.Random(f"bootstrap {first} {seed}")
    order = list(range(1, first + 1))
    source.shuffle(order)
    if first == 3:
        order = list(ORDERS[seed])
    if is_one_missing:
        order.pop(source.randrange(first))

    async def scenario(simulation: Simulation) -> None:
        cluster = LogCluster(
            simulation,
            first=range(1, first + 1),
            service=SMALL,
            keeper=CALM_KEEPER,
            raft=RAFT,
            log=DISK_LOG,
        )
        await come_up(cluster, order, source)
        if len(order) == 2:
            # Two of three make a majority, and nobody is there to take the third one's place.
            await cluster.until(lambda: cluster.leader(1) != 0, timeout_s=READY_S)
            async with await cluster.client() as client:
                await client.append(b"with two of three")
        else:
            await check_ready(cluster)
        await cluster.close_clients()
        await cluster.stop()

    simulate(seed, scenario, virtual_seconds_max=600.0)
