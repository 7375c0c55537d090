"""Planted bugs: the mistakes that a replicated store is known to make."""

from collections.abc import Mapping
from typing import ClassVar

from msgspec.structs import replace

from raftwood.net import Identity, Payload
from raftwood.zeppelin.model import NodeId, PartitionId, Topology
from raftwood.zeppelin.node.seams import PartitionStore, Record
from raftwood.zeppelin.replication.progress import ReplicaReport
from raftwood.zeppelin.replication.replicator import Replicator
from raftwood.zeppelin.replication.trysync import Answer, Holding, Offer, StreamFrom
from tests.simulation.zeppelin.meta import HeartbeatAnswer, Reports, ScriptedMeta


class StaleOffsets(ScriptedMeta):
    """Chooses a master by what slaves said a while ago, when the last one still led."""

    def heartbeat(
        self, node: NodeId, *, after: float, applied_epoch: int, reports: Reports
    ) -> HeartbeatAnswer:
        kept = self.heard.get(node)
        if kept is not None and kept.after > self.now() - 2:
            kept.at, kept.applied_epoch = self.now(), applied_epoch
            return HeartbeatAnswer(self.now(), self.topology)
        return super().heartbeat(node, after=after, applied_epoch=applied_epoch, reports=reports)

    def fresh_reports(self, partition: PartitionId, since: float) -> dict[NodeId, ReplicaReport]:
        return {
            node: heard.reports[partition]
            for node, heard in self.heard.items()
            if heard.at >= since and partition in heard.reports
        }


class NoLease(Replicator):
    """A master that the meta server does not reach goes on."""

    def _has_lease(self) -> bool:
        return True


class GlobalEpochs(Replicator):
    """Nodes talk about a partition only while they know the same topology."""

    applied: ClassVar[dict[str, int]] = {}

    async def apply(self, topology: Topology, stores: Mapping[PartitionId, PartitionStore]) -> None:
        self.applied[self._node] = topology.epoch
        await super().apply(topology, stores)

    def _records(self, peer: Identity, payload: Payload) -> None:
        if self.applied[self._node] == self.applied[peer.node_id]:
            super()._records(peer, payload)


async def touches_nothing(_store: object, *, after: int) -> list[bytes]:  # noqa: ARG001
    """For `touched`: the keys of records that are cut keep what those gave them."""
    return []


def streams_whatever(offer: Offer, _holding: Holding) -> Answer:
    """For `trysync.answer`: a slave that has other records than the master goes on behind them."""
    return StreamFrom(offer.last + 1)


def counts_ttl_from_arrival(record: Record, *, now_ms: int) -> Record:  # noqa: ARG001
    """For `as_arrived`: time to live begins when a record arrives, some time after its writing."""
    return replace(
        record,
        writes=tuple(
            replace(write, expires_ms=write.expires_ms + 5) if write.expires_ms else write
            for write in record.writes
        ),
    )
