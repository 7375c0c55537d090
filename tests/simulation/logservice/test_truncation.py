"""Truncation of a log shard, with replicas that restart, lag behind, or come late.

The example: 200 entries are applied and 100 are truncated; a snapshot at 200 must not hide the
log from 101 on, whoever restarts, and whenever.
"""

from raftwood.testing import Simulation, simulate
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


def test_three_restarts_at_once_change_nothing_that_can_be_read() -> None:
    """Again and again, in the midst of appends and truncations: the range stays valid."""

    async def scenario(simulation: Simulation) -> None:
        cluster = truncating_cluster(simulation)
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
        cluster = truncating_cluster(simulation)
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
        cluster = truncating_cluster(simulation)
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
                # On all: who has not heard that the change is over counts store 3, which is gone.
                hosts = [cluster.stores[each].host for each in (1, 2, 4) if each in cluster.stores]
                found = [host.status(SHARD) for host in hosts if SHARD in host.groups()]
                return [(each.voters, each.is_joint) for each in found] == [((1, 2, 4), False)] * 3

            await cluster.until(has_joined)
            for store in (1, 2):
                # Whoever of the old ones leads goes, and the new one has to carry on with the rest.
                cluster.machines[store].power_off()
                await check_readable(client, lsns, truncated=TRUNCATED)
                cluster.start(store)
                await cluster.wait_for_leader(SHARD)
        await cluster.stop()

    simulate(4, scenario, virtual_seconds_max=600.0)
