"""Planted bugs: the mistakes that a replicated store is known to make.

Each is put in place of something that nodes or their meta server really run.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

from msgspec.structs import replace

from raftwood.net import Identity, Payload
from raftwood.zeppelin.meta import migration, state_machine
from raftwood.zeppelin.meta.changes import CancelHandover, CancelSplit, EndHandover, EndSplit
from raftwood.zeppelin.meta.heartbeats import (
    LeaderTerm,
    NodeHeartbeat,
    PlanningView,
    ReplicaOffset,
    TablePartition,
)
from raftwood.zeppelin.model import NodeId, PartitionId, Topology
from raftwood.zeppelin.node import server
from raftwood.zeppelin.node import store as store_module
from raftwood.zeppelin.node.engine import EngineState
from raftwood.zeppelin.node.engine_folders import first_engine
from raftwood.zeppelin.node.membership import NodeMembership
from raftwood.zeppelin.node.store import NodeStore
from raftwood.zeppelin.node.stored_partition import StoredPartition
from raftwood.zeppelin.node.view import PartitionCopy
from raftwood.zeppelin.records import BinlogRecord, PartitionStore
from raftwood.zeppelin.replication import slave as slave_module
from raftwood.zeppelin.replication.epochs import SyncAnswer, SyncOffer
from raftwood.zeppelin.replication.master import MasterReplication
from raftwood.zeppelin.replication.replica import PartitionReplica
from raftwood.zeppelin.replication.replicator import Replicator
from raftwood.zeppelin.settings import StoreSettings
from tests.kits.models import Mutant, replaced, together
from tests.kits.zeppelin import engines
from tests.kits.zeppelin.harms import Harm
from tests.kits.zeppelin.simulation import world
from tests.kits.zeppelin.simulation.doubling import run_behind, run_doubling
from tests.kits.zeppelin.simulation.oracle import Oracle
from tests.kits.zeppelin.simulation.reading import run_reading
from tests.kits.zeppelin.simulation.steps import ONE_ACK, Failure, How, Step, Who, run_failures
from tests.kits.zeppelin.simulation.world import FAST, SAFE, run, run_cut_off

STALE_MS = 5_000
LINK_LOST = Failure(Step.FROZEN, Who.SOURCE, How.LINK, lasting_s=1.2)
"""The master is well, and what it writes before it hears of the freeze, the target does not get."""
_TARGET_LOST = Failure(Step.FROZEN, Who.TARGET, How.CUT, lasting_s=8.0)
_LEADER_LOST = Failure(Step.ORDERED, Who.LEADER, How.POWER, lasting_s=0.2)


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

    def _leading(self, partition: PartitionId, slave: NodeId) -> MasterReplication | None:
        return super()._leading(partition, slave) if self._knows_as_much_as(slave) else None

    def _knows_as_much_as(self, peer: str) -> bool:
        return self.applied.get(self._node) == self.applied.get(peer)


async def _touches_nothing(_store: object, *, after: int) -> list[bytes]:  # noqa: ARG001
    """The keys of records that are cut keep what those gave them."""
    return []


def _counts_from_arrival(record: BinlogRecord, *, now_ms: int) -> BinlogRecord:  # noqa: ARG001
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


_honest_hear = LeaderTerm.hear


def _hears_offsets_seldom(reign: LeaderTerm, heartbeat: NodeHeartbeat, now_ms: int) -> bool:
    """A master is chosen by what slaves said a while ago, when the last one still led."""
    heard = reign.nodes.get(heartbeat.node)
    if heard is None or not heard.offsets or now_ms // STALE_MS != heard.at_ms // STALE_MS:
        return _honest_hear(reign, heartbeat, now_ms)
    return _honest_hear(reign, replace(heartbeat, offsets=tuple(heard.offsets.values())), now_ms)


@contextmanager
def _offsets_of_before() -> Iterator[None]:
    """A node that says that it knows of a freeze is believed to be where it said last."""
    told: dict[NodeId, tuple[ReplicaOffset, ...]] = {}

    def hears_late(reign: LeaderTerm, heartbeat: NodeHeartbeat, now_ms: int) -> bool:
        before = told.get(heartbeat.node, heartbeat.offsets)
        told[heartbeat.node] = heartbeat.offsets
        return _honest_hear(reign, replace(heartbeat, offsets=before), now_ms)

    with replaced(LeaderTerm, hear=hears_late)():
        yield


def _needs_no_word_of_the_freeze(
    view: PlanningView, place: TablePartition, target: NodeId, *, master: NodeId
) -> bool:
    """The target is master once it is where the master was, which may not have heard of it."""
    frozen, reached = view.offset(master, place), view.offset(target, place)
    return (
        frozen is not None
        and reached is not None
        and reached.is_candidate
        and reached.position == frozen.position
    )


_honest_next_step = migration.handover_step


def _never_gives_up(
    view: PlanningView, place: TablePartition
) -> EndHandover | CancelHandover | None:
    """Who waits for a target that does not come waits for ever."""
    step = _honest_next_step(view, place)
    return None if isinstance(step, CancelHandover) else step


_honest_topologies = state_machine._topologies


def _without_migrations(data: bytes) -> Topology:
    """What was ordered of the last leader is nothing to the next one."""
    topology = _honest_topologies.decode(data)
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


def _same_engine(partition: PartitionId, *, epoch: int) -> str:  # noqa: ARG001
    """A node that gets a partition back goes on with the engine that it had before."""
    return first_engine(partition, epoch=0)


def _mends_nothing(*_: object) -> list[PartitionId]:
    return []


async def _removes_nothing(store: NodeStore) -> None:
    store._left.clear()


def _ends_at_once(view: PlanningView, place: TablePartition) -> EndSplit | CancelSplit | None:
    """A split without a freeze: what the master told last is where it is thought to be."""
    before = place.partition
    assert before.master is not None
    offset = view.offset(before.master, place)
    if offset is None:
        return None
    return EndSplit(place.table.name, place.number, before.epoch, offset.epoch, offset.sequence)


_honest_may_write = PartitionReplica.may_write.fget  # type: ignore[attr-defined]


def _writes_on(replica: PartitionReplica) -> bool:
    known = replica._known
    is_splitting = known is not None and known.is_splitting
    return replica.is_leading if is_splitting else _honest_may_write(replica)


_honest_try_sync = MasterReplication.try_sync


def _replaces(
    leading: MasterReplication,
    slave: NodeId,
    session: int,
    offer: SyncOffer,
    *,
    may_replace: bool = True,
) -> SyncAnswer:
    return _honest_try_sync(leading, slave, session, offer, may_replace=may_replace or True)


def _whatever_it_knows(
    replicator: Replicator, partition: PartitionId, slave: NodeId, _epoch: int
) -> MasterReplication:
    leading = replicator._leading(partition, slave)
    assert leading is not None
    return leading


_honest_is_undone = PartitionCopy.is_undone


def _masters_tell_at_once(copy: PartitionCopy, sequence: int) -> bool:
    return not copy.is_leading and _honest_is_undone(copy, sequence)


def _slaves_tell_at_once(copy: PartitionCopy, sequence: int) -> bool:
    return copy.is_leading and _honest_is_undone(copy, sequence)


def _failing(*failures: Failure) -> partial[None]:
    return partial(_run_failures, [*failures])


def _run_failures(failures: list[Failure], seed: int) -> None:
    run_failures(failures, seed=seed, config=ONE_ACK, is_calm=True)


MUTANTS = {
    "stale offsets choose a master": Mutant(
        partial(run, config=SAFE),
        replaced(LeaderTerm, hear=_hears_offsets_seldom),
        harm=Harm.LOST,
    ),
    "no lease": Mutant(
        partial(run, config=FAST),
        replaced(server, Replicator=NoLease),
        first=2,
        harm=Harm.TWO_MASTERS,
    ),
    "divergence is not undone": Mutant(
        partial(run, config=SAFE),
        replaced(StoredPartition, touched=_touches_nothing),
        first=16,
        harm=Harm.GHOST,
    ),
    "relative times to live": Mutant(
        partial(run, config=SAFE),
        replaced(slave_module, as_arrived=_counts_from_arrival),
        first=5,
        harm=Harm.GHOST,
    ),
    "the engine is ahead of the binlog": Mutant(
        partial(run, config=FAST),
        together(
            replaced(StoredPartition, logged=_does_not_wait_for_the_disk),
            # The binlog has time to be lost, and the engine none.
            replaced(engines, FLUSHES_BY_ITSELF=1.0),
            replaced(world, SETTINGS=[StoreSettings(sync_interval_ms=1_000)]),
        ),
        first=4,
        harm=Harm.STALLED,
    ),
    "global epochs have to be equal": Mutant(
        run_cut_off, replaced(server, Replicator=GlobalEpochs), first=1, harm=Harm.STALLED
    ),
    "hand-over without word of the freeze": Mutant(
        _failing(*[LINK_LOST] * 4),
        replaced(migration, _has_all=_needs_no_word_of_the_freeze),
        harm=Harm.LOST,
    ),
    "hand-over by old heartbeats": Mutant(
        _failing(*[LINK_LOST] * 4), _offsets_of_before, harm=Harm.LOST
    ),
    "stuck is never left": Mutant(
        _failing(_TARGET_LOST), replaced(migration, handover_step=_never_gives_up), harm=Harm.FROZEN
    ),
    "migrations are forgotten": Mutant(
        _failing(*[_LEADER_LOST] * 2),
        replaced(state_machine, _topologies=SimpleNamespace(decode=_without_migrations)),
        harm=Harm.FORGOTTEN,
    ),
    "old data is kept": Mutant(
        _failing(*[_LEADER_LOST] * 2),
        together(
            replaced(store_module, first_engine=_same_engine),
            replaced(NodeStore, _remove_left=_removes_nothing),
            # Else the node takes what does not fit for damage, and heals itself by a whole copy.
            replaced(NodeMembership, _mendable=_mends_nothing),
        ),
        harm=Harm.STALLED,
    ),
    "a split without a freeze": Mutant(
        partial(run_doubling, config=SAFE),
        together(
            replaced(migration, split_step=_ends_at_once),
            replaced(PartitionReplica, may_write=property(_writes_on)),
        ),
        harm=Harm.LOST,
    ),
    "reads do not wait": Mutant(
        run_reading,
        replaced(PartitionCopy, is_undone=_masters_tell_at_once),
        harm=Harm.UNDONE,
    ),
    "reads do not wait, and the history alone shows it": Mutant(
        run_reading,
        together(
            replaced(PartitionCopy, is_undone=_masters_tell_at_once),
            replaced(Oracle, told=lambda *_: None),
        ),
        harm=Harm.NOT_LINEARIZABLE,
    ),
    "reads of slaves do not wait": Mutant(
        run_reading, replaced(PartitionCopy, is_undone=_slaves_tell_at_once), harm=Harm.UNDONE
    ),
    "what was read outlasts a rewind": Mutant(
        run_reading,
        replaced(PartitionReplica, _replacing=lambda _replica, _begins: None),
        harm=Harm.UNDONE,
    ),
    "a trimmed copy is taken for whole": Mutant(
        # A slave that does not know of a split takes a copy without what was split off.
        run_behind,
        together(
            replaced(MasterReplication, try_sync=_replaces),
            replaced(Replicator, _expected_leading=_whatever_it_knows),
            replaced(EngineState, has_all_of=lambda _state, _slots: True),
        ),
        first=3,
        harm=Harm.GHOST,
    ),
}
