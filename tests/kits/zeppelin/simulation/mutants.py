"""Planted bugs: the mistakes that a replicated store is known to make.

Each is put in place of something that nodes or their meta server really run.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

from msgspec.structs import replace

from raftwood.net import Identity, Payload
from raftwood.zeppelin.meta import handover, state_machine
from raftwood.zeppelin.meta.changes import CancelHandover, EndHandover
from raftwood.zeppelin.meta.heard import Heartbeat, Offset, Reign
from raftwood.zeppelin.meta.view import Place, View
from raftwood.zeppelin.model import NodeId, PartitionId, Topology
from raftwood.zeppelin.node import node_server, node_store
from raftwood.zeppelin.node.engine_home import first_engine
from raftwood.zeppelin.node.node_store import NodeStore
from raftwood.zeppelin.node.seams import PartitionStore, Record
from raftwood.zeppelin.node.store_settings import StoreSettings
from raftwood.zeppelin.node.stored_partition import StoredPartition
from raftwood.zeppelin.replication import following
from raftwood.zeppelin.replication.leading import Leading
from raftwood.zeppelin.replication.replicator import Replicator
from tests.kits.zeppelin import engines
from tests.kits.zeppelin.simulation import world

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


@contextmanager
def _offsets_of_before() -> Iterator[None]:
    """A node that says that it knows of a freeze is believed to be where it said last."""
    told: dict[NodeId, tuple[Offset, ...]] = {}

    def hears_late(reign: Reign, heartbeat: Heartbeat, now_ms: int) -> bool:
        before = told.get(heartbeat.node, heartbeat.offsets)
        told[heartbeat.node] = heartbeat.offsets
        return _honest_hear(reign, replace(heartbeat, offsets=before), now_ms)

    with patch.object(Reign, "hear", hears_late):
        yield


def _needs_no_word_of_the_freeze(
    view: View, place: Place, target: NodeId, *, master: NodeId
) -> bool:
    """The target is master once it is where the master was, which may not have heard of it."""
    frozen, reached = view.offset(master, place), view.offset(target, place)
    return (
        frozen is not None
        and reached is not None
        and reached.is_candidate
        and reached.position == frozen.position
    )


_honest_next_step = handover.next_step


def _never_gives_up(view: View, place: Place) -> EndHandover | CancelHandover | None:
    """Who waits for a target that does not come waits for ever."""
    step = _honest_next_step(view, place)
    return None if isinstance(step, CancelHandover) else step


_honest_restored = state_machine._restored


def _without_migrations(data: bytes) -> Topology:
    """What was ordered of the last leader is nothing to the next one."""
    topology = _honest_restored(data)
    return replace(
        topology,
        tables={
            name: replace(
                table,
                partitions=tuple(
                    replace(each, migration=None, migrations_next=()) for each in table.partitions
                ),
            )
            for name, table in topology.tables.items()
        },
    )


@contextmanager
def _old_data_kept() -> Iterator[None]:
    """A node that gets a partition back goes on with the engine that it had before."""

    def same_engine(partition: PartitionId, *, epoch: int) -> str:  # noqa: ARG001
        return first_engine(partition, epoch=0)

    async def keeps(store: NodeStore) -> None:
        store._left.clear()

    with (
        patch.object(node_store, "first_engine", same_engine),
        patch.object(NodeStore, "_remove_left", keeps),
    ):
        yield


MUTANTS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "stale offsets choose a master": lambda: patch.object(Reign, "hear", _hears_offsets_seldom),
    "no lease": lambda: patch.object(node_server, "Replicator", NoLease),
    "divergence is not undone": lambda: patch.object(StoredPartition, "touched", _touches_nothing),
    "relative times to live": lambda: patch.object(following, "as_arrived", _counts_from_arrival),
    "the engine is ahead of the binlog": _engine_ahead,
    "hand-over without word of the freeze": lambda: patch.object(
        handover, "_has_all", _needs_no_word_of_the_freeze
    ),
    "hand-over by old heartbeats": _offsets_of_before,
    "stuck is never left": lambda: patch.object(handover, "next_step", _never_gives_up),
    "migrations are forgotten": lambda: patch.object(
        state_machine, "_restored", _without_migrations
    ),
    "old data is kept": _old_data_kept,
    "global epochs have to be equal": lambda: patch.object(node_server, "Replicator", GlobalEpochs),
}
