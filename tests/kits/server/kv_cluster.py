"""Zeppelin's meta server in memory, and nodes that have always heard of everything."""

from typing import Any

from raftwood.zeppelin.meta.changes import encode_batch
from raftwood.zeppelin.meta.heartbeats import NodeHeartbeat, ReplicaOffset
from raftwood.zeppelin.meta.queries import encode_query
from raftwood.zeppelin.model import NodeId
from tests.kits.zeppelin.meta.group_in_memory import Command, GroupInMemory


class Cluster(GroupInMemory):
    """Its nodes have heard of everything whenever the meta server is asked something."""

    def __init__(self) -> None:
        super().__init__()
        self.silent: list[NodeId] = []
        self.lags: dict[NodeId, int] = {}
        self.contact_ms: int | None = 5

    def change(self, *changes: Any) -> None:
        self.machine.update([Command(0, encode_batch(changes))])

    async def read(self, group: int, query: bytes, *, timeout_ms: int, wait_ms: int = 0) -> bytes:
        for node in self.machine.topology.nodes:
            if node not in self.silent:
                self.machine.lookup(encode_query(self._heartbeat(node)))
        return await super().read(group, query, timeout_ms=timeout_ms, wait_ms=wait_ms)

    def _heartbeat(self, node: NodeId) -> NodeHeartbeat:
        topology = self.machine.topology
        offsets = [
            ReplicaOffset(
                table.incarnation, number, 1, 9, self.lags.get(node, 0), contact_ms=self.contact_ms
            )
            for table in topology.tables.values()
            for number, partition in enumerate(table.partitions)
            if node in partition.replicas
        ]
        return NodeHeartbeat(node, 1, topology.epoch, tuple(offsets))
