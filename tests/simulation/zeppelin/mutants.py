"""Planted bugs: the mistakes that a replicated store is known to make.

Each is put in place of something that nodes or their meta server really run.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

from msgspec.structs import replace

from raftwood.net import Identity, Payload
from raftwood.zeppelin.meta.heard import Heartbeat, Reign
from raftwood.zeppelin.model import NodeId, PartitionId, Topology
from raftwood.zeppelin.node import node_server
from raftwood.zeppelin.node.seams import PartitionStore, Record
from raftwood.zeppelin.node.store_settings import StoreSettings
from raftwood.zeppelin.node.stored_partition import StoredPartition
from raftwood.zeppelin.replication import following
from raftwood.zeppelin.replication.leading import Leading
from raftwood.zeppelin.replication.replicator import Replicator
from tests.simulation.zeppelin import world
from tests.zeppelin_kit import engines

STALE_MS = 5_000


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
        if self._knows_as_much_as(peer.node_id):
            super()._records(peer, payload)

    def _leading(self, partition: PartitionId, slave: NodeId) -> Leading | None:
        return super()._leading(partition, slave) if self._knows_as_much_as(slave) else None

    def _knows_as_much_as(self, peer: str) -> bool:
        return self.applied.get(self._node) == self.applied.get(peer)


async def _touches_nothing(_store: object, *, after: int) -> list[bytes]:  # noqa: ARG001
    """The keys of records that are cut keep what those gave them."""
    return []


def _counts_from_arrival(record: Record, *, now_ms: int) -> Record:  # noqa: ARG001
    """Time to live begins when a record arrives, some time after its writing."""
    return replace(
        record,
        writes=tuple(
            replace(write, expires_ms=write.expires_ms + 5) if write.expires_ms else write
            for write in record.writes
        ),
    )


def _does_not_wait_for_the_disk(store: StoredPartition) -> None:
    """The engine gets what is committed, before the binlog is synced."""
    synced, store.synced_sequence = store.synced_sequence, store.last_sequence
    while store.apply_some(100):
        pass
    store.synced_sequence = synced
    store._tell()


@contextmanager
def _engine_ahead() -> Iterator[None]:
    with (
        patch.object(StoredPartition, "logged", _does_not_wait_for_the_disk),
        # The binlog has time to be lost, and the engine none.
        patch.object(engines, "FLUSHES_BY_ITSELF", 1.0),
        patch.object(world, "SETTINGS", [StoreSettings(sync_interval_ms=1_000)]),
    ):
        yield


_honest_hear = Reign.hear


def _hears_offsets_seldom(reign: Reign, heartbeat: Heartbeat, now_ms: int) -> bool:
    """A master is chosen by what slaves said a while ago, when the last one still led."""
    heard = reign.nodes.get(heartbeat.node)
    if heard is None or not heard.offsets or now_ms // STALE_MS != heard.at_ms // STALE_MS:
        return _honest_hear(reign, heartbeat, now_ms)
    return _honest_hear(reign, replace(heartbeat, offsets=tuple(heard.offsets.values())), now_ms)


MUTANTS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "stale offsets choose a master": lambda: patch.object(Reign, "hear", _hears_offsets_seldom),
    "no lease": lambda: patch.object(node_server, "Replicator", NoLease),
    "divergence is not undone": lambda: patch.object(StoredPartition, "touched", _touches_nothing),
    "relative times to live": lambda: patch.object(following, "as_arrived", _counts_from_arrival),
    "the engine is ahead of the binlog": _engine_ahead,
    "global epochs have to be equal": lambda: patch.object(node_server, "Replicator", GlobalEpochs),
}
