"""A cluster that lost its quorum for good goes on from one store, with all records that it has."""

from typing import Any

from raftwood.base.environment import Environment
from raftwood.raft.offline import recover_group
from tests.kits.logservice.log_cluster import LogCluster, address, run_log_cluster


async def _recover(cluster: LogCluster, store: int, group: int) -> None:
    failures: list[Any] = []

    async def program(environment: Environment) -> None:
        try:
            await recover_group(environment, "/data/store", group, {store: address(store)})
        except Exception as error:
            failures.append(error)

    machine = cluster.machines[store]
    machine.start(program)
    await cluster.until(lambda: not machine.running)
    assert not failures


def test_records_stay_readable_when_a_shard_is_recovered_from_one_store() -> None:
    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        client = await cluster.client(timeout_ms=30_000)
        lsns = await client.append_many([b"record %d" % number for number in range(100)])
        await client.truncate(lsns[9])
        await client.close()
        await cluster.until(
            lambda: all(
                each.host.applied(1) == cluster.stores[1].host.applied(1) > lsns[-1]
                for each in cluster.stores.values()
            )
        )
        epoch = cluster.stores[1].host.status(1).epoch
        for store in (2, 3):
            cluster.machines[store].power_off()
        await cluster.stop(1)
        for group in (0, 1):
            await _recover(cluster, 1, group)
        for store in (2, 3):
            del cluster.machines[store], cluster.stores[store]
        cluster.start(1)
        await cluster.wait_for_leader(1)
        client = await cluster.client(timeout_ms=30_000)
        records, _ = await client.read(lsns[10])
        assert [bytes(record.payload) for record in records] == [
            b"record %d" % number for number in range(10, 100)
        ]
        await client.append(b"goes on")
        await client.close()
        operator = cluster.operator()
        # HAKeeper believes the new members, as they are of a higher epoch.
        shard = await operator.find_shard(1)
        while shard.voters != (1,):
            await cluster.stores[1].heartbeats.beat()
            shard = await operator.find_shard(1)
        assert shard.epoch > epoch
        await operator.close()

    run_log_cluster(scenario)
