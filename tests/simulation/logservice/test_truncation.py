"""Truncation of a log shard, with crashes at every step and with replicas that come late.

The example: 200 entries are applied and 100 are truncated; a snapshot at 200 must not hide the
log from 101 on, whoever restarts, and whenever.
"""

import asyncio

import msgspec
import pytest

from raftwood.simulation import Simulation, simulate
from tests.kits.logservice.log_cluster import LogCluster
from tests.kits.logservice.readable import SHARD, STORES, check_readable, fill, restart
from tests.kits.logservice.simulation.crash_points import STEPS, CrashPoints
from tests.kits.logservice.simulation.world import CALM_KEEPER, DISK_LOG, RAFT, SMALL

RECORDS = 200
TRUNCATED = 100
"""This many records; their LSNs are higher by what the group itself wrote."""


def new_cluster(simulation: Simulation) -> LogCluster:
    service = msgspec.structs.replace(SMALL, snapshot_entries=20)
    return LogCluster(simulation, service=service, keeper=CALM_KEEPER, raft=RAFT, log=DISK_LOG)


async def start_again(cluster: LogCluster, points: CrashPoints) -> None:
    """Until all have crashed that are to, and run again."""
    while points.is_armed or not all(machine.running for machine in cluster.machines.values()):
        await asyncio.sleep(0.5)
        cluster.start(*(store for store, each in cluster.machines.items() if not each.running))


def first_index(cluster: LogCluster, store: int) -> int:
    if not cluster.is_running(store) or SHARD not in cluster.stores[store].host.groups():
        return 0
    return cluster.stores[store].host.status(SHARD).first_index


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
        cluster = new_cluster(simulation)
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


def test_three_restarts_at_once_change_nothing_that_can_be_read() -> None:
    """Again and again, in the midst of appends and truncations: the range stays valid."""

    async def scenario(simulation: Simulation) -> None:
        cluster = new_cluster(simulation)
        cluster.start(*STORES)
        await cluster.wait_for_leader(SHARD)
        lsns: list[int] = []
        async with await cluster.client(timeout_ms=20_000) as client:
            for turn in range(1, 5):
                await fill(client, lsns, 60 * turn)
                await client.truncate(lsns[40 * turn - 1])
                restart(cluster, *STORES)
                await check_readable(client, lsns, truncated=40 * turn)
                info = await client.info()
                assert info.log.first_lsn == lsns[40 * turn - 1] + 1
                assert info.log.next_lsn > lsns[-1]
        await cluster.stop()

    simulate(2, scenario, virtual_seconds_max=600.0)


def test_a_replica_that_lagged_behind_gets_all_that_can_be_read() -> None:
    async def scenario(simulation: Simulation) -> None:
        cluster = new_cluster(simulation)
        cluster.start(*STORES)
        await cluster.wait_for_leader(SHARD)
        lsns: list[int] = []
        async with await cluster.client() as client:
            await fill(client, lsns, 40)
            cluster.machines[3].power_off()
            await fill(client, lsns, RECORDS)
            await client.truncate(lsns[TRUNCATED - 1])
            await cluster.until(
                lambda: first_index(cluster, 1) > lsns[41] < first_index(cluster, 2)
            )
            cluster.start(3)
            await cluster.until(lambda: first_index(cluster, 3) > lsns[41])
            await cluster.until(lambda: cluster.stores[3].host.applied(SHARD) >= lsns[-1])
            # Now it is asked alone with one other that knows no more.
            cluster.machines[await cluster.wait_for_leader(SHARD)].power_off()
            await check_readable(client, lsns, truncated=TRUNCATED)
            records, _ = await cluster.stores[3].host.read_log(SHARD, lsns[TRUNCATED])
            assert records[0].index == lsns[TRUNCATED]
        await cluster.stop()

    simulate(3, scenario, virtual_seconds_max=600.0)


def test_a_new_replica_gets_all_that_can_be_read() -> None:
    async def scenario(simulation: Simulation) -> None:
        cluster = new_cluster(simulation)
        cluster.start(*STORES)
        await cluster.wait_for_leader(SHARD)
        lsns: list[int] = []
        async with await cluster.client() as client:
            await fill(client, lsns, RECORDS)
            await client.truncate(lsns[TRUNCATED - 1])
            await cluster.until(lambda: first_index(cluster, 1) > 1 < first_index(cluster, 2))
            cluster.start(4, joins=True)
            cluster.machines[3].power_off()

            def has_joined() -> bool:
                leader = cluster.leader(SHARD)
                if not leader:
                    return False
                return sorted(cluster.stores[leader].host.status(SHARD).voters) == [1, 2, 4]

            await cluster.until(has_joined)
            for store in (1, 2):
                # Whoever of the old ones leads goes, and the new one has to carry on with the rest.
                cluster.machines[store].power_off()
                await check_readable(client, lsns, truncated=TRUNCATED)
                cluster.start(store)
                await cluster.wait_for_leader(SHARD)
        await cluster.stop()

    simulate(4, scenario, virtual_seconds_max=600.0)
