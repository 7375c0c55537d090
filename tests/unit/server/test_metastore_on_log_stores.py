"""The metastore as a shard of the log service: placed, mended, served; and the logs beside it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.kits.server.store_cluster import StoreCluster, run_stores, settings_of

from raftwood.base.errors import InvalidInput, NotFound, PermissionDenied
from raftwood.base.seams import MetaStore, SetKey
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.hakeeper.commands import AddTnShard, DrainStore, RemoveShard
from raftwood.metastore.raft_store import RaftMetaStore
from raftwood.net.stores import Stores
from raftwood.raft.client import AsyncRaftClient
from raftwood.server.cluster import (
    METASTORE_GROUP,
    METASTORE_SHARD,
    client_network,
    operator_network,
    reader_network,
)
from raftwood.server.cluster_client import connected_cluster, connected_metastore
from raftwood.server.tenants import log_tenant

FLAGS = (
    "hakeeper.tick_ms=200",
    "hakeeper.heartbeat_ms=400",
    "hakeeper.store_down_ticks=25",
    "hakeeper.zombie_ticks=25",
    "hakeeper.order_ticks=20",
    "logservice.truncation_ms=500",
    "logservice.snapshot_entries=20",
    "logservice.disk_alarm_bytes=0",
    "logservice.disk_refuse_bytes=0",
)
SETTINGS = settings_of(1, *FLAGS)
ADDRESSES = {store: f"s{store}:7000" for store in (1, 2, 3)}


def run_log_stores(scenario: Callable[[StoreCluster], Coroutine[Any, Any, None]]) -> None:
    run_stores(scenario, make_tenant=log_tenant, flags=FLAGS)


async def started(cluster: StoreCluster) -> None:
    cluster.start(1, 2, 3)
    await cluster.ready(1, 2, 3)
    await cluster.wait_for_leader(METASTORE_SHARD)


async def put(meta: MetaStore, key: str, value: bytes) -> None:
    await meta.transact((), (SetKey(key, value),))


async def until_gone(meta: MetaStore, key: str) -> None:
    for _ in range(200):
        if await meta.get(key) is None:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{key} is still there")


def test_the_metastore_of_log_stores_survives_its_leader_and_its_leases_end() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.ready(1)
        # From the first moment on: whoever comes early waits.
        async with connected_metastore(cluster.environment, SETTINGS, "s1:7000") as meta:
            lease = await meta.grant_lease(ttl_ms=2_000)
            await meta.compare_and_set("under/lease", b"", version=0, lease=lease)
            await put(meta, "a", b"one")
            leader = await cluster.wait_for_leader(METASTORE_SHARD)
            cluster.machines[leader].power_off()
            await put(meta, "a", b"two")
            found = await meta.get("a")
            assert found is not None
            assert found.value == b"two"
            assert await cluster.wait_for_leader(METASTORE_SHARD) != leader
            await until_gone(meta, "under/lease")
            with pytest.raises(NotFound):
                await meta.keep_alive(lease)
            cluster.start(leader)
            await cluster.ready(leader)

    run_log_stores(scenario)


def test_the_metastore_is_freed_of_old_entries_and_moves_to_other_stores() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        await started(cluster)
        operators = Stores(cluster.environment, operator_network(SETTINGS), ADDRESSES)
        keeper = KeeperClient(operators)
        async with connected_metastore(cluster.environment, SETTINGS, None) as meta:
            for number in range(100):
                await put(meta, f"k/{number % 7}", b"%d" % number)
            host = cluster.servers[1].host
            await cluster.until(lambda: host.status(METASTORE_SHARD).first_index > 50)
            cluster.start(4, joins=True)
            await cluster.ready(4)
            gone = await cluster.wait_for_leader(METASTORE_SHARD)
            await keeper.command(DrainStore(gone, is_draining=True))
            await cluster.until(
                lambda: (
                    METASTORE_SHARD in cluster.servers[4].host.groups()
                    and METASTORE_SHARD not in cluster.servers[gone].host.groups()
                )
            )
            await put(meta, "k/0", b"after")
            assert len((await meta.range(prefix="k/")).entries) == 7
        # A store that has no replica of it tells where it is.
        async with connected_metastore(cluster.environment, SETTINGS, f"s{gone}:7000") as meta:
            found = await meta.get("k/0")
            assert found is not None
            assert found.value == b"after"
        await keeper.close()
        await operators.close()

    run_log_stores(scenario)


def test_logs_are_made_beside_the_metastore() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        await started(cluster)
        environment = cluster.environment
        async with connected_cluster(environment, SETTINGS, "s2:7000") as (meta, logs):
            await put(meta, "orders", b"made")
            await logs.create("orders")
            log = await logs.open("orders")
            position = await log.append([b"one"], producer=b"p", sequence=1)
            batches, _ = await log.read(position, bytes_max=100)
            assert [bytes(each.data) for each in batches] == [b"one"]
            assert await logs.names("") == ["log-1", "orders"]

    run_log_stores(scenario)


def test_the_metastore_is_no_log_and_cannot_be_removed() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        await started(cluster)
        stores = Stores(cluster.environment, operator_network(SETTINGS), ADDRESSES)
        keeper = KeeperClient(stores)
        view = await keeper.find_shard("metastore")
        assert (view.shard, view.wanted_voters) == (METASTORE_SHARD, 3)
        for command in (RemoveShard(METASTORE_SHARD), RemoveShard(0)):
            with pytest.raises(InvalidInput, match="is no log"):
                await keeper.command(command)
        with pytest.raises(NotFound):
            await keeper.command(AddTnShard(METASTORE_SHARD, "once"))
        assert await keeper.log_names("") == ["log-1"]
        for shard in ("metastore", METASTORE_SHARD, 0):
            with pytest.raises(InvalidInput, match="no log"):
                await AsyncLogClient.attach(cluster.environment, stores, shard=shard)
        await keeper.close()
        await stores.close()

    run_log_stores(scenario)


def test_clients_reach_no_other_group_that_way_and_readers_change_nothing() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        await started(cluster)
        environment = cluster.environment
        async with AsyncRaftClient(environment, client_network(SETTINGS), ADDRESSES) as client:
            for group in (0, METASTORE_GROUP):
                other = RaftMetaStore(client, group)
                with pytest.raises(InvalidInput, match="not served"):
                    await other.get("a")
                with pytest.raises(InvalidInput, match="not served"):
                    await put(other, "a", b"")
                with pytest.raises(InvalidInput, match="not served"):
                    await client.propose(group, b"", timeout_ms=1_000, exactly_once=False)
        async with AsyncRaftClient(environment, reader_network(SETTINGS), ADDRESSES) as client:
            meta = RaftMetaStore(client, METASTORE_SHARD)
            assert await meta.get("a") is None
            with pytest.raises(PermissionDenied):
                await put(meta, "a", b"")

    run_log_stores(scenario)


def test_the_metastore_of_raftwood_serve_is_found_the_same_way() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.ready(1, 2, 3)
        async with connected_metastore(cluster.environment, settings_of(1), "s2:7000") as meta:
            await put(meta, "a", b"one")
            assert await meta.get("a") is not None
        with pytest.raises(InvalidInput, match="no log service"):
            async with connected_cluster(cluster.environment, settings_of(1), "s2:7000"):
                pass

    run_stores(scenario)


def test_a_watch_tells_of_a_change_at_once_and_of_others_not_at_all() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        await started(cluster)
        loop = asyncio.get_running_loop()
        environment = cluster.environment
        async with (
            connected_metastore(environment, SETTINGS, None) as meta,
            connected_metastore(environment, SETTINGS, None) as other,
        ):
            version = (await meta.status()).version
            watch = meta.watch("here/", after_version=version)
            told = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(7.0)  # longer than one question waits
            for number in range(20):
                await put(other, f"elsewhere/{number}", b"")
            await asyncio.sleep(1.0)
            assert not told.done()
            await put(other, "here/1", b"one")
            changed_at = loop.time()
            assert [each.key for each in await told] == ["here/1"]
            assert loop.time() - changed_at < 0.1
            # Whoever leads: a watch goes on with the next leader.
            told = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(1.0)
            leader = await cluster.wait_for_leader(METASTORE_SHARD)
            cluster.machines[leader].power_off()
            await put(other, "here/2", b"two")
            assert [each.key for each in await told] == ["here/2"]

    run_log_stores(scenario)
