"""One node: stores that lose what they had not synced, a replicator, and the link to the meta."""

import asyncio
import contextvars
from collections.abc import Callable

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import ConnectionLost, Unavailable
from raftwood.net import ClientLimits, Secret
from raftwood.zeppelin.model import NodeId, PartitionId, Topology
from raftwood.zeppelin.node.seams import PartitionStore, Record, Write
from raftwood.zeppelin.replication.peers import ReplicationNetwork
from raftwood.zeppelin.replication.replica import Replica
from raftwood.zeppelin.replication.replicator import Replicator
from tests.simulation.zeppelin.meta import LEASE_MS, PORT, ScriptedMeta
from tests.simulation.zeppelin.oracle import Oracle
from tests.simulation.zeppelin.storage import ENGINES, Storage
from tests.zeppelin_kit.image_store import Image, Origin

NETWORK = ReplicationNetwork(
    cluster="simulated",
    secret=Secret(b"of all nodes in here"),
    limits=ClientLimits(connect_timeout_ms=1_000, ping_interval_ms=500, ping_timeout_ms=500),
)
HEARTBEAT_S = 0.1
LINK_S = (0.001, 0.05)

Change = Callable[[PartitionStore, int], tuple[tuple[Write, ...], bool]]
"""What a request does, given the time: writes, and whether it flushes."""


class Disk(msgspec.Struct):
    """What a machine keeps over crashes."""

    images: dict[PartitionId, Image] = msgspec.field(default_factory=dict)
    topology: Topology = Topology()
    boot: int = 0
    moment: float = -1.0


class ZeppelinNode:
    """One run of a node."""

    def __init__(
        self,
        name: str,
        environment: Environment,
        disk: Disk,
        *,
        meta: ScriptedMeta,
        oracle: Oracle,
        replicator: type[Replicator],
        storage: Storage,
    ) -> None:
        disk.boot += 1
        self.id = NodeId(name)
        self.context = contextvars.copy_context()
        self.stores: dict[PartitionId, PartitionStore] = {}
        self._environment = environment
        self._disk = disk
        self._meta = meta
        self._oracle = oracle
        self._storage = storage
        self._heard_moment = -1.0
        self.replicator = replicator(
            environment, NETWORK, self.id, boot=disk.boot, copies_folder=ENGINES
        )

    @property
    def applied_epoch(self) -> int:
        return self._disk.topology.epoch

    @property
    def now_ms(self) -> int:
        return self._environment.clock.wall_ns() // 1_000_000

    async def run(self) -> None:
        await self._storage.open()
        await self.replicator.listen("0.0.0.0", PORT)
        try:
            await self._apply(self._disk.topology)
            while True:
                await self._heartbeat()
                await asyncio.sleep(self._environment.random.uniform(0.5, 1) * HEARTBEAT_S)
        finally:
            await self.replicator.close()
            await self._storage.close()

    async def _apply(self, topology: Topology) -> None:
        mine = [
            PartitionId(table.incarnation, number)
            for table in topology.tables.values()
            for number, known in enumerate(table.partitions)
            if self.id in known.replicas
        ]
        if mine and not self.stores:
            self.stores = await self._storage.partitions(mine)
            for partition, store in self.stores.items():
                self._oracle.watch(partition, store)
        self._disk.topology = topology
        await self.replicator.apply(topology, self.stores)

    async def _heartbeat(self) -> None:
        asked_ns = self._environment.clock.monotonic_ns()
        after = self._heard_moment
        applied_epoch = self.applied_epoch
        reports = {
            partition: replica.report() for partition, replica in self.replicator.replicas.items()
        }
        await asyncio.sleep(self._environment.random.uniform(*LINK_S))
        if self.id in self._meta.cut_off:
            return
        answer = self._meta.heartbeat(
            self.id, after=after, applied_epoch=applied_epoch, reports=reports
        )
        await asyncio.sleep(self._environment.random.uniform(*LINK_S))
        if self.id in self._meta.cut_off:
            return
        self._heard_moment = answer.moment
        if answer.topology.epoch > self.applied_epoch:
            await self._apply(answer.topology)
        self.replicator.renew_lease(
            asked_ns=asked_ns, length_ms=LEASE_MS, epoch=answer.topology.epoch
        )

    # What clients ask, within the process.

    async def execute(self, partition: PartitionId, origin: Origin, change: Change) -> None:
        """Returns once it may be called done; the same origin again changes nothing more."""
        replica = self.replicator.replica(partition)
        if replica is None or not replica.may_write:
            raise Unavailable(f"{self.id} takes no writes of {partition}")
        store = self.stores[partition]
        sequence = store.sequence_of(*origin)
        if sequence is None:
            sequence = store.last_sequence + 1
            writes, flushes = change(store, self.now_ms)
            store.commit(Record(replica.epoch, sequence, writes, flushes, origin))
        await self._done(replica, sequence)
        self._oracle.called_done(self.id, partition, origin)

    async def _done(self, replica: Replica, sequence: int) -> None:
        acks = replica.acks
        changed = asyncio.Event()
        while acks.reached < sequence:
            if acks.is_over:
                raise ConnectionLost(f"{self.id} leads no more")
            changed.clear()
            acks.wait(sequence, changed.set)
            await changed.wait()
        while not replica.may_read:  # a request that was done before is told again
            await asyncio.sleep(0.01)
            if acks.is_over:
                raise ConnectionLost(f"{self.id} leads no more")
