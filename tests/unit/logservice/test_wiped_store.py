"""A store that comes back without its data is replaced, and stands in nobody's way."""

import asyncio

import msgspec
import pytest

from raftwood.logservice.hakeeper.commands import ForgetStore
from raftwood.testing.disk import SimulatedDisk
from tests.kits.logservice.log_cluster import KEEPER, LogCluster, run_log_cluster


async def _wipe(cluster: LogCluster, store: int, *, joins: bool) -> None:
    machine = cluster.machines[store]
    machine.power_off()
    machine.disk = SimulatedDisk(cluster.simulation.loop, f"new disk of {store}")
    machine.node.on_power_loss.append(machine.disk.power_loss)
    await asyncio.sleep(1)
    cluster.start(store, joins=joins)


@pytest.mark.parametrize("joins", [True, False])
def test_a_new_store_takes_the_place_of_one_that_was_wiped(joins: bool) -> None:
    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        client = await cluster.client(timeout_ms=30_000)
        for _ in range(12):
            await client.append_many([b"record"] * 100)
        await _wipe(cluster, 3, joins=joins)
        await asyncio.sleep(40)
        operator = cluster.operator()
        alarms = [alarm.text for alarm in (await operator.describe()).alarms]
        assert any("came back without its data" in text for text in alarms)
        cluster.start(4, joins=True)
        for _ in range(120):
            await asyncio.sleep(1)
            shards = [await operator.find_shard(number) for number in (0, 1)]
            if all(each.voters == (1, 2, 4) for each in shards):
                break
        assert [each.voters for each in shards] == [(1, 2, 4)] * 2
        await client.append(b"goes on")
        await client.close()
        await operator.close()

    run_log_cluster(scenario, keeper=msgspec.structs.replace(KEEPER, zombie_ticks=30))


def test_an_empty_store_under_a_forgotten_number_becomes_no_reader_of_a_log() -> None:
    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        cluster.start(4, joins=True)
        cluster.machines[3].power_off()
        operator = cluster.operator()
        for _ in range(120):
            await asyncio.sleep(1)
            shards = [await operator.find_shard(number) for number in (0, 1)]
            if all(each.voters == (1, 2, 4) for each in shards):
                break
        await operator.command(ForgetStore(3))
        # Another one dies, so that a place is wanted.
        cluster.machines[4].power_off()
        await _wipe(cluster, 3, joins=True)
        for _ in range(60):
            await asyncio.sleep(1)
            view = await operator.describe()
            assert 3 not in [each.store for each in view.stores]
            assert all(3 not in (*each.voters, *each.learners) for each in view.shards)
        await operator.close()

    run_log_cluster(scenario, keeper=msgspec.structs.replace(KEEPER, zombie_ticks=30))
