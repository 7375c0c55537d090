"""A node as a whole, in virtual time: when it serves, what it forgets, and what it tells."""

import asyncio
from collections.abc import Mapping

import pytest

from raftwood.base.errors import DiskFull, RaftwoodError
from raftwood.net import Secret
from raftwood.net.identity import OPERATOR_ROLE
from raftwood.net.stores import ClientNetwork
from raftwood.zeppelin.meta.state_machine import MetaMachine
from raftwood.zeppelin.model import NodeId, PartitionId, TableConfig, Topology
from raftwood.zeppelin.node.admin import ask_status
from raftwood.zeppelin.records import PartitionStore
from raftwood.zeppelin.replication.replicator import Replicator
from tests.kits.zeppelin.decoding import AnswerError
from tests.kits.zeppelin.node_cluster import NAMES, TABLE, Cluster, scene
from tests.kits.zeppelin.simulation.meta import SETTINGS
from tests.kits.zeppelin.simulation.node import NETWORK, NodeMachine


def test_expired_keys_are_removed_on_all_replicas() -> None:
    async def body(cluster: Cluster) -> None:
        master = cluster.master.name
        assert await cluster.ask(master, "SET", "gone", "1", "PX", "200") == "OK"
        assert await cluster.ask(master, "SET", "stays", "1") == "OK"

        def keys(node: NodeMachine) -> list[bytes]:
            replica = node.replica(cluster.partition)
            assert replica is not None
            return [key for key, _ in replica.store.scan(after=None, now_ms=0)]

        nodes = cluster.nodes.values()
        await cluster.simulation.wait_until(
            lambda: all(keys(node) == [b"stays"] for node in nodes), timeout_s=5
        )

    scene(body)


def test_nobody_is_served_before_the_meta_server_has_answered() -> None:
    async def body(cluster: Cluster) -> None:
        name = cluster.master.name
        assert await cluster.ask(name, "SET", "key", "1") == "OK"
        cluster.meta.cut_off[name] = None
        cluster.nodes[name].break_down(loses_power=False)
        cluster.nodes[name].start()
        await asyncio.sleep(5)
        _, answer = await cluster.connect(name)
        assert isinstance(answer, AnswerError)
        assert answer.startswith("LOADING")
        cluster.meta.cut_off.clear()
        await cluster.simulation.wait_until(lambda: cluster.nodes[name].server is not None)
        await cluster.simulation.wait_until(lambda: cluster.master_serves)
        assert await cluster.ask(cluster.master.name, "GET", "key") == b"1"

    scene(body)


def test_partitions_are_opened_though_one_of_them_could_not_be_used_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apply, refusals = Replicator.apply, ["the disk is full"] * 3

    async def full_at_first(
        self: Replicator, topology: Topology, stores: Mapping[PartitionId, PartitionStore]
    ) -> None:
        if refusals and len(stores) > 1:
            raise DiskFull(refusals.pop())
        await apply(self, topology, stores)

    async def body(cluster: Cluster) -> None:
        monkeypatch.setattr(Replicator, "apply", full_at_first)
        config = TableConfig(partitions=9, replicas=2)
        await cluster.meta.client.wait_applied(
            await cluster.meta.client.create_table("carts", config)
        )
        assert not refusals

    scene(body)


def test_a_meta_server_that_has_forgotten_everything_makes_no_node_remove_anything() -> None:
    async def body(cluster: Cluster) -> None:
        held = cluster.master.held()
        name = cluster.master.name
        cluster.meta.machine = MetaMachine(
            SETTINGS, now_ms=lambda: int(cluster.simulation.now * 1000), term=lambda: 99
        )
        await asyncio.sleep(5)
        node = cluster.nodes[name]
        assert node.held() == held
        assert "give the meta server its state back" in node.problem()
        assert await cluster.ask(name, "GET", "key") == "CLUSTERDOWN The cluster is down"

    scene(body)


def test_a_node_whose_run_is_not_the_known_one_registers_again() -> None:
    async def body(cluster: Cluster) -> None:
        name = next(name for name in NAMES if name != cluster.master.name)
        server = cluster.nodes[name].server
        assert server is not None
        node = NodeId(server.id)
        await cluster.meta.client.register(node, server.addresses, failure_domain="", run=999)
        await cluster.simulation.wait_until(lambda: cluster.meta.topology.nodes[node].run == 1)
        cluster.nodes[name].break_down(loses_power=True)
        cluster.nodes[name].start()
        await cluster.simulation.wait_until(lambda: cluster.meta.topology.nodes[node].run == 2)

    scene(body)


def test_operators_are_told_how_a_node_is_and_nobody_else() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.ask(cluster.master.name, "SET", "key", "1")
        await asyncio.sleep(1)
        server = cluster.master.server
        assert server is not None
        node = cluster.meta.topology.nodes[server.id]
        environment = cluster.simulation.environment
        operator = ClientNetwork(
            cluster="simulated", secret=NETWORK.operators, role=OPERATOR_ROLE, name="ann"
        )
        status = await ask_status(environment, operator, node)
        (copy,) = status.copies
        while copy.synced_sequence < copy.last_sequence:  # it writes at times of its own accord
            await asyncio.sleep(0.3)
            status = await ask_status(environment, operator, node)
            (copy,) = status.copies
        assert (copy.table, copy.role, copy.is_writing) == (TABLE, "master", True)
        assert copy.last_sequence == copy.synced_sequence > 1
        assert copy.slaves_in_sync == 1
        assert 0 < status.lease_ms <= SETTINGS.lease_ms
        assert status.problem == ""
        stranger = ClientNetwork(
            cluster="simulated", secret=Secret(b"guessed, and wrong"), role=OPERATOR_ROLE
        )
        with pytest.raises(RaftwoodError):
            await ask_status(environment, stranger, node)

    scene(body)
