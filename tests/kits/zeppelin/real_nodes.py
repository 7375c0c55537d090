"""Nodes that replicate on the machine's disk and loopback, all in this process."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from raftwood.base.environment import Environment
from raftwood.disk.real_environment import real_environment
from raftwood.disk.rocksdb import RocksFolders
from raftwood.net import Secret
from raftwood.zeppelin.model import (
    Ack,
    NodeAddresses,
    NodeId,
    NodeInfo,
    Partition,
    PartitionId,
    Table,
    TableConfig,
    Topology,
)
from raftwood.zeppelin.node.store import NodeStore
from raftwood.zeppelin.records import BinlogRecord, KeyWrite
from raftwood.zeppelin.replication.peers import ReplicationNetwork
from raftwood.zeppelin.replication.replica import PartitionReplica
from raftwood.zeppelin.replication.replicator import Replicator
from raftwood.zeppelin.settings import StoreSettings

PARTITION = PartitionId(1, 0)
NETWORK = ReplicationNetwork(cluster="tests", secret=Secret(b"of all nodes in here"))
LEASE_MS = 600_000


class RealNode:
    """A node with one partition."""

    def __init__(self, environment: Environment, folder: Path, name: str) -> None:
        self.id = NodeId(name)
        self._environment = environment
        self._folder = f"{folder}/{name}"
        self.port = 0

    async def start(self, boot: int = 1) -> None:
        engines = RocksFolders(
            f"{self._folder}/engines", cache_bytes=1 << 20, write_buffer_bytes=1 << 20
        )
        self._node = await NodeStore.open(
            self._environment,
            f"{self._folder}/node",
            engines,
            cluster="tests",
            # So that slaves, which are sent more once they have synced, keep tests short.
            settings=StoreSettings(sync_interval_ms=10),
        )
        if PARTITION not in self._node.held():
            await self._node.hold({PARTITION: "table"}, epoch=1)
        self.store = await self._node.partition(PARTITION)
        self.replicator = Replicator(
            self._environment,
            NETWORK,
            self.id,
            boot=boot,
            copies_folder=f"{self._folder}/engines",
        )
        self.port = await self.replicator.listen("127.0.0.1", self.port)

    async def apply(self, topology: Topology) -> None:
        self.store.ack = topology.tables["table"].config.ack
        await self.replicator.apply(topology, {PARTITION: self.store})
        now_ns = self._environment.clock.monotonic_ns()
        self.replicator.renew_lease(asked_ns=now_ns, length_ms=LEASE_MS, epoch=topology.epoch)

    @property
    def replica(self) -> PartitionReplica:
        replica = self.replicator.replica(PARTITION)
        assert replica is not None
        return replica

    def write(self, *writes: KeyWrite) -> int:
        sequence = self.store.last_sequence + 1
        self.store.commit(BinlogRecord(self.replica.epoch, sequence, writes))
        return sequence

    def contents(self) -> dict[bytes, bytes]:
        now_ms = self._environment.clock.wall_ns() // 1_000_000
        return {key: value.data for key, value in self.store.scan(after=None, now_ms=now_ms)}

    async def stop(self) -> None:
        await self.replicator.close()
        await self._node.close()


def topology(
    epoch: int,
    nodes: Sequence[RealNode],
    *,
    min_replicas: int = 2,
    lag_max_bytes: int = 64 << 20,
    ack: Ack = "synced",
) -> Topology:
    """The first node is master of the one partition, the others are its slaves."""
    master, *slaves = [node.id for node in nodes]
    table = Table(
        name="table",
        incarnation=PARTITION.incarnation,
        config=TableConfig(
            partitions=1,
            replicas=len(nodes),
            min_replicas=min_replicas,
            ack=ack,
            lag_max_bytes=lag_max_bytes,
        ),
        partitions=(Partition(epoch=epoch, master=master, slaves=tuple(slaves)),),
    )
    known = {
        node.id: NodeInfo(
            id=node.id,
            addresses=NodeAddresses(
                data="127.0.0.1:1", replication=f"127.0.0.1:{node.port}", admin="127.0.0.1:2"
            ),
            is_up=True,
        )
        for node in nodes
    }
    return Topology(epoch=epoch, tables={"table": table}, nodes=known)


def changed(topology: Topology, **fields: Any) -> Topology:
    """With other fields of its one partition."""
    table = topology.tables["table"]
    partition = replace(table.partitions[0], **fields)
    return replace(topology, tables={"table": replace(table, partitions=(partition,))})


async def until(condition: Callable[[], bool], *, timeout_s: float = 30) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  it is looked at from outside
            await asyncio.sleep(0.005)


Scenario = Callable[[RealNode, RealNode], Coroutine[Any, Any, None]]


def run_pair(folder: Path, scenario: Scenario) -> None:
    async def run() -> None:
        with real_environment() as environment:
            pair = RealNode(environment, folder, "one"), RealNode(environment, folder, "two")
            for node in pair:
                await node.start()
            try:
                await scenario(*pair)
            finally:
                for node in pair:
                    await node.stop()

    asyncio.run(run())
