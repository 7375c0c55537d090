"""Rules and plans of the meta server that are wrong: each must be found in some world."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from raftwood.base.errors import Conflict
from raftwood.zeppelin.meta import failover, migration, state_machine
from raftwood.zeppelin.meta import migration as migration_module
from raftwood.zeppelin.meta.changes import CancelHandover
from raftwood.zeppelin.meta.heartbeats import (
    KnownNode,
    LeaderTerm,
    NodeHeartbeat,
    PlanningView,
    TablePartition,
)
from raftwood.zeppelin.meta.migration import MigrationCandidates
from raftwood.zeppelin.meta.partition_rules import TopologyDraft
from raftwood.zeppelin.meta.queries import LeaseAnswer
from raftwood.zeppelin.meta.state_machine import MetaMachine
from raftwood.zeppelin.model import EPOCH_NONE
from tests.kits.models import Mutant, replaced, together
from tests.kits.zeppelin.meta.world.moving import move_through
from tests.kits.zeppelin.meta.world.world import SETTINGS, live_through

_hear = LeaderTerm.hear
_hear_with_lease = MetaMachine._hear
_has_all = migration_module._has_all
_next_handover = migration_module.handover_step
_next_migration = migration.migration_step
_begun = MigrationCandidates.begun


def _offset_of_another(view: PlanningView, node: Any, place: TablePartition) -> Any:
    offsets = view.heard(node).offsets
    others = [each for each in offsets if each != place.key]
    return offsets[others[0]] if others else offsets.get(place.key)


def _planned_by_the_global_epoch(draft: TopologyDraft, table: str, number: int, epoch: int) -> Any:
    if draft._before.epoch != epoch:
        raise Conflict("it has moved")
    return draft.partition(table, number)


def _noted_as_down(reign: LeaderTerm, node: Any, now_ms: int) -> KnownNode:
    heard = reign.nodes.get(node.id)
    if heard is None or heard.run != node.run:
        return KnownNode(node.run, now_ms - SETTINGS.down_ms)
    return heard


def _longer_lease(machine: Any, heartbeat: Any) -> Any:
    """A lease that is as long as it takes to be declared down."""
    lease = _hear_with_lease(machine, heartbeat)
    longer_ms = lease.lease_ms and SETTINGS.down_ms + 400
    return LeaseAnswer(longer_ms, lease.heartbeat_ms, lease.delta, lease.moment)


def _has_what_was_told(view: PlanningView, place: Any, target: Any, *, master: Any) -> bool:
    """The target is where the master was when it spoke last, frozen or not."""
    frozen, reached = view.offset(master, place), view.offset(target, place)
    return frozen is not None and reached is not None and reached.position >= frozen.position


@contextmanager
def _frozen_with_offsets_from_before() -> Iterator[None]:
    """A master says that it is frozen, and how far it was the last time is believed."""
    told: dict[Any, dict[Any, Any]] = {}

    def hear(reign: LeaderTerm, heartbeat: Any, now_ms: int) -> bool:
        counts = _hear(reign, heartbeat, now_ms)
        if counts:
            heard, before = reign.nodes[heartbeat.node], told.get(heartbeat.node, {})
            told[heartbeat.node] = {**heard.offsets}
            for key in heard.offsets:
                if key in before and key in reign.seen and reign.seen[key].master == heartbeat.node:
                    heard.offsets[key] = before[key]
        return counts

    with replaced(LeaderTerm, hear=hear)():
        yield


def _hear_the_old(reign: LeaderTerm, heartbeat: NodeHeartbeat, now_ms: int) -> bool:
    """What was long on its way is believed."""
    heard = reign.nodes.get(heartbeat.node)
    epoch = EPOCH_NONE
    if heard is not None:
        heard.after_ms, epoch = None, heard.applied_epoch
    counts = _hear(reign, heartbeat, now_ms)
    if heard is not None and counts:
        heard.applied_epoch = max(epoch, heard.applied_epoch)
    return counts


def _has_as_much(view: PlanningView, place: TablePartition, target: Any, *, master: Any) -> bool:
    """A slave that has as much has enough."""
    frozen, reached = view.offset(master, place), view.offset(target, place)
    if frozen is None or reached is None or reached.position < frozen.position:
        return _has_all(view, place, target, master=master)
    epoch = min(view.heard(node).applied_epoch for node in (master, target))
    return epoch >= place.partition.epoch


def _never_cancelled(view: PlanningView, place: TablePartition) -> Any:
    change = _next_handover(view, place)
    return None if isinstance(change, CancelHandover) else change


@contextmanager
def _forgotten_by_the_next_leader() -> Iterator[None]:
    """Whoever has begun a migration sees it through, and nobody else does."""
    own: dict[int, dict[tuple[str, int], None]] = {}

    def next_step(view: PlanningView, place: TablePartition) -> Any:
        is_own = (place.table.name, place.number) in own.get(view.reign.term, {})
        return _next_migration(view, place) if is_own else None

    def begun(moves: MigrationCandidates) -> Any:
        changes = _begun(moves)
        for each in changes:
            own.setdefault(moves._view.reign.term, {})[each.table, each.partition] = None
        return changes

    with together(
        replaced(migration, migration_step=next_step), replaced(MigrationCandidates, begun=begun)
    )():
        yield


def _well_whatever_it_told(view: PlanningView, place: TablePartition, target: Any) -> bool:
    """The target had a replica of this partition once, or follows nobody yet."""
    return view.offset(target, place) is not None and view.is_up(target)


def _count_all_alone(moves: MigrationCandidates, _master: Any, _target: Any) -> None:
    moves._under_way += 1


MUTANTS = {
    "the offset of another partition": Mutant(
        live_through, replaced(PlanningView, offset=_offset_of_another)
    ),
    "a stale replica": Mutant(
        live_through,
        replaced(failover, _candidates_by_lag=lambda _place, reports, _lagging: reports),
        first=8,
    ),
    "no quorum": Mutant(
        live_through,
        replaced(
            failover,
            _candidates_by_quorum=lambda _place, reports: reports,
            _has_reported=lambda _view, _place, _node: True,
        ),
        first=1,
    ),
    # Offsets count as of when they were heard, not of when they were looked at.
    "judged by arrival": Mutant(
        live_through, replaced(LeaderTerm, _after_ms=lambda _self, _heartbeat: 1 << 60), first=13
    ),
    "a global epoch": Mutant(
        live_through, replaced(TopologyDraft, planned=_planned_by_the_global_epoch)
    ),
    "judges at once": Mutant(
        live_through, replaced(LeaderTerm, _noted_node=_noted_as_down), first=15
    ),
    "a lease that is too long": Mutant(
        live_through, replaced(MetaMachine, _hear=_longer_lease), first=15
    ),
    "frozen before the freeze": Mutant(
        live_through, replaced(migration_module, _has_all=_has_what_was_told)
    ),
    "frozen with offsets from before": Mutant(
        live_through, _frozen_with_offsets_from_before, first=10
    ),
    "unfit masters stay": Mutant(
        live_through,
        replaced(state_machine, is_unfit=lambda _view, _place: False),
        first=3,
    ),
    # Where a replica is removed the others are taken to have all that it had acked.
    "proven at once": Mutant(
        live_through, replaced(failover, _is_proven=lambda *_, **__: True), first=3
    ),
    "a migration that is frozen before the freeze": Mutant(
        move_through, replaced(migration_module, _has_all=_has_what_was_told), first=1
    ),
    "judged by old heartbeats": Mutant(
        move_through,
        together(
            replaced(LeaderTerm, hear=_hear_the_old),
            replaced(migration_module, _has_all=_has_as_much),
        ),
        first=7,
    ),
    "never unstuck": Mutant(
        move_through, replaced(migration_module, handover_step=_never_cancelled), first=1
    ),
    "slowed down for ever": Mutant(
        move_through, replaced(migration, _is_slow_in_vain=lambda _view, _place: False), first=10
    ),
    "forgotten by the next leader": Mutant(move_through, _forgotten_by_the_next_leader, first=1),
    "the source is gone too early": Mutant(
        move_through, replaced(migration, _can_end=lambda _view, _place: True)
    ),
    "the source is gone by what the target told of another time": Mutant(
        move_through, replaced(migration, _is_well=_well_whatever_it_told)
    ),
    "any number at once": Mutant(
        move_through, replaced(MigrationCandidates, _count=lambda _self, _master, _target: None)
    ),
    "nodes without a bound": Mutant(
        move_through, replaced(MigrationCandidates, _count=_count_all_alone)
    ),
}
