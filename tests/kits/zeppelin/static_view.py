"""Nodes of a topology that does not change, for tests of what clients see."""

import asyncio
import random
from collections.abc import Sequence

import msgspec

from raftwood.zeppelin.model import (
    NodeAddresses,
    NodeId,
    NodeInfo,
    Partition,
    Reads,
    Table,
    TableConfig,
    Topology,
    User,
)
from raftwood.zeppelin.node.view import PartitionCopy
from raftwood.zeppelin.passwords import password_hash
from raftwood.zeppelin.slots import slot_of
from tests.kits.zeppelin.acks import StaticAcks
from tests.kits.zeppelin.memory_engines import MemoryEngines
from tests.kits.zeppelin.memory_store import MemoryPartitionStore

PASSWORD = "correct-horse"
HASH = password_hash(PASSWORD.encode(), random.Random(0))
READER = "reader"
WRITER = "writer"
TABLE = "orders"
_NEWS_S = 0.01


def node(name: str, port: int, *, is_up: bool = True) -> NodeInfo:
    addresses = NodeAddresses(
        data=f"127.0.0.1:{port}", replication="127.0.0.1:1", admin="127.0.0.1:2"
    )
    return NodeInfo(id=NodeId(name), addresses=addresses, is_up=is_up)


def topology_of(
    nodes: Sequence[NodeInfo],
    partitions: Sequence[Partition],
    config: TableConfig,
    reads: Reads | None = None,
) -> Topology:
    table = Table(
        name=TABLE,
        incarnation=1,
        config=config,
        partitions=tuple(partitions),
        reads=reads or msgspec.UNSET,
    )
    users = {
        name: User(name=name, table=TABLE, password_hash=HASH, may_write=name != READER)
        for name in (READER, WRITER, "default")
    }
    return Topology(
        epoch=3, tables={TABLE: table}, nodes={each.id: each for each in nodes}, users=users
    )


class StaticView:
    """One node, and the copies that it has by a topology."""

    def __init__(
        self,
        topology: Topology,
        node_id: str,
        *,
        is_written_at_once: bool = True,
        shared: Sequence[MemoryPartitionStore] = (),
    ) -> None:
        """With `shared` partitions its slaves are never behind."""
        self.node_id = NodeId(node_id)
        self.topology = topology
        self.copied = shared[0].copies if shared else MemoryEngines()
        """Where checkpoints go."""
        self.has_lease = False
        """Where a master does not lead: as if it had no word from the meta server."""
        self.stores: list[MemoryPartitionStore | None] = []
        self._copies: list[PartitionCopy | None] = []
        table = topology.tables[TABLE]
        for number, partition in enumerate(table.partitions):
            if self.node_id not in partition.replicas:
                self.stores.append(None)
                self._copies.append(None)
                continue
            store = (
                shared[number]
                if shared
                else MemoryPartitionStore(is_written_at_once=is_written_at_once)
            )
            store.copies = self.copied
            if table.has_durable_reads and store.last_writes is None:
                store.note_last_writes(is_on=True)
            acks = StaticAcks(store, table.config)
            copy = PartitionCopy(store, acks, epoch=partition.epoch)
            copy.is_leading = copy.is_serving = partition.master == self.node_id
            copy.is_reading_behind = not copy.is_leading
            self.stores.append(store)
            self._copies.append(copy)

    def copies(self, table: str) -> Sequence[PartitionCopy | None]:
        known = self.topology.tables.get(table)
        return () if known is None else [self._copies[number] for number in known.places]

    async def wait_for_news(self, timeout_s: float) -> None:
        await asyncio.sleep(min(timeout_s, _NEWS_S))

    def partition_of(self, key: str) -> int:
        return self.topology.tables[TABLE].partition_of_slot(slot_of(key.encode()))

    def copy(self, partition: int) -> PartitionCopy:
        found = self._copies[partition]
        assert found is not None
        return found


def single_node(
    port: int = 0,
    *,
    partitions: int = 4,
    config: TableConfig | None = None,
    is_written_at_once: bool = True,
    reads: Reads | None = None,
) -> StaticView:
    """A node that is the master of everything."""
    config = config or TableConfig(partitions=partitions, replicas=1, ack="memory")
    topology = topology_of(
        [node("alone", port)],
        [Partition(epoch=2, master=NodeId("alone"))] * config.partitions,
        config,
        reads,
    )
    return StaticView(topology, "alone", is_written_at_once=is_written_at_once)


def nodes_of_all(ports: Sequence[int], *, partitions: int = 8) -> list[StaticView]:
    """Nodes that all have a copy of everything, and are masters in turn."""
    names = [NodeId(f"node-{number}") for number in range(len(ports))]
    config = TableConfig(partitions=partitions, replicas=len(names), ack="memory")
    placed = []
    for number in range(partitions):
        first = number % len(names)
        master, *slaves = names[first:] + names[:first]
        placed.append(Partition(epoch=2, master=master, slaves=tuple(slaves)))
    known = [node(name, port) for name, port in zip(names, ports, strict=True)]
    shared = [MemoryPartitionStore() for _ in placed]
    topology = topology_of(known, placed, config)
    return [StaticView(topology, name, shared=shared) for name in names]
