"""Zeppelin's meta server as a guest of log stores: it begins, survives its leader, and judges."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.kits.server.store_cluster import StoreCluster, run_stores, settings_of
from tests.unit.server.test_metastore_on_log_stores import (
    ADDRESSES,
    SETTINGS,
    put,
    run_log_stores,
)

from raftwood.base.errors import InvalidInput, RaftwoodError
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.hakeeper.commands import DrainStore
from raftwood.logservice.server.log_store import LogStore
from raftwood.net.stores import Stores
from raftwood.raft.client import AsyncRaftClient
from raftwood.server import tenants
from raftwood.server.cluster import METASTORE_SHARD, ZEPPELIN_SHARD, operator_network
from raftwood.server.cluster_client import (
    connected_cluster,
    connected_metastore,
    connected_zeppelin,
)
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.meta.deltas import applied
from raftwood.zeppelin.meta.heartbeats import LeaderMoment, NodeHeartbeat, ReplicaOffset
from raftwood.zeppelin.meta.state_machine import MetaMachine
from raftwood.zeppelin.model import NodeAddresses, NodeId, TableConfig, Topology


class BeatingNode:
    """Tells the meta server that it is there, and keeps what it hears."""

    def __init__(self, meta: MetaClient, name: str) -> None:
        self._meta = meta
        self.id = NodeId(name)
        self.topology = Topology()
        self.leased_until = 0.0
        self._answered: LeaderMoment | None = None

    async def register(self) -> None:
        addresses = NodeAddresses(data="h:1", replication="h:2", admin="h:3")
        await self._meta.register(self.id, addresses, failure_domain=self.id, run=1)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            asked = loop.time()
            try:
                lease = await self._meta.heartbeat(self._heartbeat(), timeout_ms=1_000)
            except RaftwoodError:
                await asyncio.sleep(0.1)
                continue
            self.topology = applied(self.topology, lease.delta)
            self._answered = lease.moment
            if lease.lease_ms:
                self.leased_until = asked + lease.lease_ms / 1000
            await asyncio.sleep(lease.heartbeat_ms / 1000)

    def _heartbeat(self) -> NodeHeartbeat:
        offsets = [
            ReplicaOffset(table.incarnation, number, partition.epoch, 1, contact_ms=0)
            for table in self.topology.tables.values()
            for number, partition in enumerate(table.partitions)
            if self.id in partition.replicas
        ]
        return NodeHeartbeat(self.id, 1, self.topology.epoch, tuple(offsets), self._answered)


def test_tables_are_made_nodes_fail_and_a_leader_too() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.ready(1, 2, 3)
        environment = cluster.environment
        async with connected_zeppelin(environment, SETTINGS, "s2:7000") as meta:
            nodes = {name: BeatingNode(meta, name) for name in ("a", "b", "c")}
            for node in nodes.values():
                await node.register()
            tasks = {name: asyncio.create_task(node.run()) for name, node in nodes.items()}
            epoch = await meta.create_table("t", TableConfig(partitions=6))
            await meta.wait_applied(epoch)
            assert all("t" in node.topology.tables for node in nodes.values())
            tasks["a"].cancel()
            leader = await cluster.wait_for_leader(ZEPPELIN_SHARD)
            cluster.machines[leader].power_off()
            topology = await meta.topology()
            async for delta in meta.watch(topology.epoch):
                topology = applied(topology, delta)
                masters = [each.master for each in topology.tables["t"].partitions]
                if NodeId("a") not in masters:
                    break
            assert sorted(masters) == ["b"] * 3 + ["c"] * 3  # type: ignore[type-var]
            assert asyncio.get_running_loop().time() > nodes["a"].leased_until
            # It comes back, and so do its masters.
            tasks["a"] = asyncio.create_task(nodes["a"].run())
            async for delta in meta.watch(topology.epoch):
                topology = applied(topology, delta)
                partitions = topology.tables["t"].partitions
                if all(each.master == each.preferred for each in partitions):
                    break
            cluster.start(leader)
            await cluster.ready(leader)
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    run_log_stores(scenario)


def test_it_moves_to_another_store_and_followers_answer_what_is_replicated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: StoreCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.ready(1, 2, 3)
        operators = Stores(cluster.environment, operator_network(SETTINGS), ADDRESSES)
        keeper = KeeperClient(operators)
        async with connected_zeppelin(cluster.environment, SETTINGS, None) as meta:
            node = BeatingNode(meta, "a")
            await node.register()
            beating = asyncio.create_task(node.run())
            epoch = await meta.create_table("t", TableConfig(partitions=2, replicas=1))
            cluster.start(4, joins=True)
            await cluster.ready(4)
            gone = await cluster.wait_for_leader(ZEPPELIN_SHARD)
            await keeper.command(DrainStore(gone, is_draining=True))
            await cluster.until(
                lambda: (
                    ZEPPELIN_SHARD in cluster.servers[4].host.groups()
                    and ZEPPELIN_SHARD not in cluster.servers[gone].host.groups()
                )
            )
            leader = await cluster.wait_for_leader(ZEPPELIN_SHARD)
            stayed = next(each for each in (1, 2, 3) if each not in (gone, leader))
            cluster.machines[stayed].power_off()
            # Without the new store there would be no majority.
            made = await meta.create_table("u", TableConfig(partitions=2, replicas=1))
            assert made > epoch
            cluster.start(stayed)
            await cluster.ready(stayed)
            leader = await cluster.wait_for_leader(ZEPPELIN_SHARD)
            follower = (
                stayed
                if leader != stayed
                else next(each for each in (1, 2, 3) if each not in (gone, stayed))
            )
            machine = cluster.servers[follower].host.machine(ZEPPELIN_SHARD)
            assert isinstance(machine, MetaMachine)
            answered: list[bytes] = []
            lookup = machine.lookup

            def counted(query: bytes) -> bytes | RaftwoodError:
                answered.append(query)
                return lookup(query)

            monkeypatch.setattr(machine, "lookup", counted)
            client = meta._client
            assert isinstance(client, AsyncRaftClient)
            while not answered:  # it may not be connected at first
                client._stores._leaders[ZEPPELIN_SHARD] = follower
                assert sorted((await meta.topology()).tables) == ["t", "u"]
                await asyncio.sleep(0.1)
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
        await keeper.close()
        await operators.close()

    run_log_stores(scenario)


def test_a_cluster_that_began_without_it_starts_and_gets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without(*arguments: Any) -> LogStore:
        kept = {METASTORE_SHARD: arguments[-1][METASTORE_SHARD]}
        make: Callable[..., LogStore] = LogStore
        return make(*arguments[:-1], kept)

    async def scenario(cluster: StoreCluster) -> None:
        monkeypatch.setattr(tenants, "LogStore", without)
        cluster.start(1, 2, 3)
        await cluster.ready(1, 2, 3)
        async with connected_metastore(cluster.environment, SETTINGS, None) as meta:
            await put(meta, "a", b"one")
        await cluster.stop()
        monkeypatch.setattr(tenants, "LogStore", LogStore)
        cluster.start(1, 2, 3)
        await cluster.ready(1, 2, 3)
        async with connected_metastore(cluster.environment, SETTINGS, None) as meta:
            assert await meta.get("a") is not None
        # Once all stores run a program that knows it, it begins there as well.
        async with connected_zeppelin(cluster.environment, SETTINGS, None) as zeppelin:
            assert (await zeppelin.topology()).tables == {}

    run_log_stores(scenario)


def test_stores_without_a_log_service_have_none_and_it_is_said() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader()
        for connected in (connected_zeppelin, connected_cluster):
            with pytest.raises(InvalidInput, match="run no log service"):
                async with connected(cluster.environment, settings_of(1), None):
                    pass

    run_stores(scenario)
