"""Log stores as a whole: bootstrap, appends, reads, truncation, failover, in a simulation."""

import asyncio

import pytest

from raftwood.logservice.errors import LsnPastEnd, LsnTruncated
from raftwood.logservice.hakeeper.state import ClusterPhase
from raftwood.net.stores import Stores
from raftwood.raft.admin import RaftAdmin
from tests.kits.logservice.log_cluster import OPERATOR, LogCluster, address, run_log_cluster


def test_three_stores_set_themselves_up_and_keep_records() -> None:
    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        async with await cluster.client() as client:
            lsns = await client.append_many([b"record %d" % each for each in range(100)])
            assert lsns == sorted(set(lsns))
            records, next_lsn = await client.read(lsns[0])
            assert [record.lsn for record in records] == lsns
            assert [bytes(record.payload) for record in records] == [
                b"record %d" % each for each in range(100)
            ]
            assert await client.read(next_lsn) == ([], next_lsn)
            with pytest.raises(LsnPastEnd) as past:
                await client.read(next_lsn + 1)
            assert past.value.next == next_lsn
        operator = cluster.operator()
        for _ in range(20):
            await asyncio.sleep(0.5)
            view = await operator.describe()
            if view.phase is ClusterPhase.RUNNING:
                break
        assert view.phase is ClusterPhase.RUNNING
        await operator.close()

    run_log_cluster(scenario)


def test_what_is_truncated_is_freed_on_all_stores_and_the_rest_stays_readable() -> None:
    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        async with await cluster.client() as client:
            lsns = []
            for start in range(0, 300, 10):
                lsns += await client.append_many(
                    [b"%d" % each for each in range(start, start + 10)]
                )
                await asyncio.sleep(0.2)
            await client.truncate(lsns[149])
            assert await client.get_truncated_lsn() == lsns[149]
            await cluster.until(
                lambda: all(
                    each.host.status(1).first_index > lsns[100] for each in cluster.stores.values()
                )
            )
            with pytest.raises(LsnTruncated):
                await client.read(lsns[149])
            records, _ = await client.read(lsns[149] + 1)
            assert [bytes(each.payload) for each in records] == [b"%d" % e for e in range(150, 300)]

    run_log_cluster(scenario)


def test_a_snapshot_that_an_operator_asks_for_hides_no_record() -> None:
    """The records are in the log alone: a snapshot has none of them."""

    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        members = {store: address(store) for store in cluster.machines}
        stores = Stores(cluster.environment, OPERATOR, members)
        async with await cluster.client() as client:
            lsns = await client.append_many([b"%d" % each for each in range(30)])
            admin = RaftAdmin(stores)
            await cluster.until(
                lambda: all(each.host.applied(1) >= lsns[-1] for each in cluster.stores.values())
            )
            for store in members:
                assert await admin.snapshot(1, store=store) >= lsns[-1]
            records, _ = await client.read(lsns[0])
            assert [record.lsn for record in records] == lsns
            await client.truncate(lsns[9])
            await admin.snapshot(1, store=cluster.leader(1))
            records, _ = await client.read(lsns[10])
            assert [record.lsn for record in records] == lsns[10:]
        await stores.close()

    run_log_cluster(scenario)
