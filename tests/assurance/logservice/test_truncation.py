"""The power fails at every step of a truncation: what was not truncated stays readable."""

import asyncio

import pytest

from raftwood.testing import Simulation, simulate
from tests.kits.logservice.log_cluster import LogCluster
from tests.kits.logservice.readable import (
    RECORDS,
    SHARD,
    STORES,
    TRUNCATED,
    check_readable,
    fill,
    first_index,
    restart,
    truncating_cluster,
)
from tests.kits.logservice.simulation.crash_points import STEPS, CrashPoints


async def start_again(cluster: LogCluster, points: CrashPoints) -> None:
    """Until all have crashed that are to, and run again."""
    while points.is_armed or not all(machine.running for machine in cluster.machines.values()):
        await asyncio.sleep(0.5)
        cluster.start(*(store for store, each in cluster.machines.items() if not each.running))


@pytest.mark.parametrize(
    ("step", "victims"),
    [
        *((step, [1, 2, 3]) for step in STEPS),
        *((step, [2]) for step in STEPS[::2]),
        *((step, [1, 3]) for step in STEPS[1::2]),
    ],
)
def test_reading_goes_on_after_what_was_truncated_wherever_the_power_fails(
    step: str, victims: list[int]
) -> None:
    async def scenario(simulation: Simulation) -> None:
        cluster = truncating_cluster(simulation)
        points = CrashPoints(simulation, SHARD)
        with points.planted():
            cluster.start(*STORES)
            await cluster.wait_for_leader(SHARD)
            lsns: list[int] = []
            async with await cluster.client(timeout_ms=30_000) as client:
                await fill(client, lsns, RECORDS)
                points.arm(step, victims)
                await asyncio.gather(
                    client.truncate(lsns[TRUNCATED - 1]),
                    fill(client, lsns, RECORDS + 120),
                    start_again(cluster, points),
                )
                await check_readable(client, lsns, truncated=TRUNCATED)
                restart(cluster, *STORES)
                await cluster.wait_for_leader(SHARD)
                await check_readable(client, lsns, truncated=TRUNCATED)
                # The worker goes on where it was: 20 entries lie between two snapshots, and more
                # where some were thinned out.
                await cluster.until(
                    lambda: all(first_index(cluster, each) > lsns[20] for each in STORES)
                )
                assert all(first_index(cluster, each) <= lsns[TRUNCATED] for each in STORES)
                await check_readable(client, lsns, truncated=TRUNCATED)
        assert sorted(points.crashed) == [f"s{store}" for store in victims]
        await cluster.stop()

    simulate(1, scenario, virtual_seconds_max=600.0)
