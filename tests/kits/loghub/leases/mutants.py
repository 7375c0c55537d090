"""Bugs planted on purpose: each must be caught, or the checkers prove nothing."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import structs

from raftwood.loghub.consumer import group_view, lease_plan, memory_store
from raftwood.loghub.consumer.group_view import FailureDetector, GroupView
from raftwood.loghub.consumer.lease_agent import LeaseAgent, LeaseOffers, ShardHold
from raftwood.loghub.consumer.lease_plan import LeaseMove, Situation
from raftwood.loghub.consumer.leases import (
    NOBODY,
    LeaseOwner,
    LeaseTimes,
    Renewal,
    Save,
    ShardLease,
    Take,
)
from raftwood.loghub.consumer.memory_store import MemoryLeaseStore
from tests.kits.loghub.leases import sim_worker
from tests.kits.loghub.leases.profile import FAULTS
from tests.kits.loghub.leases.runs import run_in
from tests.kits.models import Mutant, replaced, together


def _saved_by(
    is_refused: Callable[[ShardLease, str, Save], bool],
) -> Callable[[MemoryLeaseStore, str, Save], bool]:
    def saved(self: MemoryLeaseStore, process: str, save: Save) -> bool:
        lease = self.leases.get(save.shard)
        if lease is None or is_refused(lease, process, save):
            return False
        self._change(lease, checkpoint=save.checkpoint, seq=save.seq)
        return True

    return saved


def _by_name(lease: ShardLease, process: str, save: Save) -> bool:
    """Processes of one name, of whatever epoch, are taken for one."""
    return lease.consumer_owner != _NAMES.get(process) or save.seq < lease.seq or lease.is_ended


def _with_older(lease: ShardLease, process: str, save: Save) -> bool:
    return (lease.consumer_process, lease.epoch) != (process, save.epoch)


_NAMES: dict[str, str] = {}


async def _register(self: MemoryLeaseStore, worker: LeaseOwner) -> Any:
    _NAMES[worker.process] = worker.instance
    return self._beat(worker, self.workers.get(worker.instance))


async def _take_with_epoch(
    self: MemoryLeaseStore, worker: LeaseOwner, takes: Sequence[Take]
) -> list[ShardLease]:
    """The epoch grows at the steal already."""
    for take in takes:
        lease = self.leases.get(take.shard)
        if lease and lease.lease_id == take.lease_id and not lease.is_ended:
            changes: dict[str, Any] = {"epoch": lease.epoch + 1}
            if take.sets_consumer:
                changes |= memory_store._as_consumer(worker, lease)
            self._change(
                lease,
                lease_id=lease.lease_id + 1,
                lease_owner=worker.instance,
                lease_process=worker.process,
                **changes,
            )
    return self._rows([each.shard for each in takes])


async def _become_after_reading(
    self: MemoryLeaseStore, worker: LeaseOwner, renewals: Sequence[Renewal]
) -> list[ShardLease]:
    """The checkpoint is the one that was there as the lease was taken."""
    found = []
    for lease in self._as_given(worker.process, renewals):
        early = _early(self).get(lease.shard, lease.checkpoint)
        self._change(lease, lease_id=lease.lease_id + 1, **memory_store._as_consumer(worker, lease))
        now = self.leases[lease.shard]
        found.append(structs.replace(now, checkpoint=early))
    shown = {lease.shard for lease in found}
    return found + self._rows([each.shard for each in renewals if each.shard not in shown])


def _early(store: MemoryLeaseStore) -> dict[str, str | None]:
    found: dict[str, str | None] = vars(store).setdefault("early", {})
    return found


_take = MemoryLeaseStore.take


async def _take_and_read(
    self: MemoryLeaseStore, worker: LeaseOwner, takes: Sequence[Take]
) -> list[ShardLease]:
    found = await _take(self, worker, takes)
    for lease in found:
        _early(self)[lease.shard] = lease.checkpoint
    return found


def _plan_at_one(situation: Situation) -> list[LeaseMove]:
    """Whoever has less than the ceiling steals from whoever has more."""
    held, free, count = lease_plan._held(situation)
    ceiling = -(-count // max(1, len(held)))
    moves = [
        LeaseMove(shard, NOBODY, process)
        for shard, process in zip(free, [*held] * len(free), strict=False)
    ]
    for target in held:
        for source in held:
            if len(held[target]) < min(ceiling, len(held[source])):
                moves.append(LeaseMove(held[source][0].shard, source, target))
                break
    return moves


def _ready_at_once(lease: ShardLease, leases: Any) -> bool:  # noqa: ARG001
    return not lease.is_ended


def _begins_at_once(self: LeaseAgent, hold: ShardHold) -> int:  # noqa: ARG001
    return 0


def _twice_as_fast(self: FailureDetector, now_ms: int) -> int:
    looked_ms = now_ms if self._looked_ms is None else self._looked_ms
    return self.clock_ms + 2 * (now_ms - looked_ms)


def _at_the_last_look(self: FailureDetector, now_ms: int) -> int:  # noqa: ARG001
    """Time stands still until the first look, and is never counted."""
    return self.clock_ms


async def _delete_unseen(self: MemoryLeaseStore, shards: Sequence[str]) -> None:
    for lease in self._rows(shards):
        if lease.is_ended:
            del self.leases[lease.shard]


def _never_wants_a_lease(self: GroupView) -> list[Any]:  # noqa: ARG001
    return []


def _only_known(parents: Any, new: Any) -> list[Any]:
    """Also those that were deleted."""
    return [each for each in new if each.shard not in parents]


def _adopts_nothing(self: LeaseAgent, leases: Any, now_ms: int, actions: Any) -> None:
    """A take whose answer was lost is forgotten."""
    known = [lease for lease in leases if lease.shard in self._holds]
    _reconcile(self, known, now_ms, actions)


_reconcile = LeaseAgent._reconcile


def _keeps(self: LeaseAgent, hold: ShardHold, actions: Any) -> None:
    """Renewals go on."""


def _for_anybody(situation: Situation, free: Any, moves: Any) -> dict[str, list[str]]:  # noqa: ARG001
    return {}


def _taken_by_its_own_timeout(self: MemoryLeaseStore, worker: LeaseOwner, takes: Any) -> Any:
    """As if nobody else had to be waited for who has a longer one."""
    for take in takes:
        if lease := self.leases.get(take.shard):
            self.leases[take.shard] = structs.replace(lease, timeout_ms=0)
    return _take(self, worker, takes)


async def _created_from_an_old_list(
    self: MemoryLeaseStore,
    leases: Any,
    *,
    deleted_seq: int | None = None,  # noqa: ARG001
) -> None:
    await _create(self, leases)


_create = MemoryLeaseStore.create


def _weights(**more: float) -> dict[str, Any]:
    calm = dict.fromkeys(("join", "drain", "split", "merge", *FAULTS), 0.0)
    return {"weights": {**calm, "write": 5, **more}, "chaos_timeouts": 8, "pace_ms": 300}


_STEALS = _weights(join=2, drain=1) | {
    "shards": 8,
    "workers": 1,
    "lose_request": 0.0,
    "lose_answer": 0.0,
    "late": 0.0,
}
_CUTS = _weights(cut_off=4, pause=1) | {"workers": 3, "shards": 3, "process_ms": 300}
_CUTS["weights"]["write"] = 40
_CUTS["pace_ms"] = 60
_ZOMBIES = _weights(restart=2, pause=2) | {"workers": 2, "process_ms": 300, "save_every": 1}
_FAMILY = _weights(split=2, merge=2, join=1) | {"shards": 3, "workers": 2}
_HANGS = _weights(join=1, hang=2) | {"shards": 5, "workers": 3, "hangs_on": True}
_WELL = {"latency_ms": 2, "lose_request": 0.0, "lose_answer": 0.0}
_HASTE = _weights(join=3, drain=2, cut_off=4) | _WELL | {"workers": 2, "shards": 5, "late": 0.0}
_HASTE |= {"is_mixed": True, "process_ms": 300, "pace_ms": 60}
_HASTE["weights"]["write"] = 40
_MERGES = _weights(merge=2) | _WELL | {"workers": 3, "shards": 8, "late": 0.1}
_MERGES |= {"process_ms": 50, "save_every": 1, "pace_ms": 150}
MUTANTS = {
    "fences by name": Mutant(
        partial(run_in, **_ZOMBIES),
        replaced(MemoryLeaseStore, register=_register, _saved=_saved_by(_by_name)),
        first=39,
    ),
    "bumps the epoch at the steal": Mutant(
        partial(run_in, **_STEALS), replaced(MemoryLeaseStore, take=_take_with_epoch)
    ),
    "steals at a difference of one": Mutant(
        partial(run_in, **_STEALS), replaced(sim_worker, plan_by_count=_plan_at_one)
    ),
    "does not stop by itself": Mutant(
        partial(run_in, **_CUTS),
        replaced(LeaseTimes, hold_ms=property(lambda _: 1 << 40)),
        first=1,
    ),
    "reads the checkpoint before it is consumer": Mutant(
        partial(run_in, **_STEALS),
        replaced(MemoryLeaseStore, take=_take_and_read, become_consumer=_become_after_reading),
    ),
    "accepts an older checkpoint": Mutant(
        partial(run_in, save_every=1),
        replaced(MemoryLeaseStore, _saved=_saved_by(_with_older)),
        first=2,
    ),
    "starts a child before its parent": Mutant(
        partial(run_in, **_FAMILY), replaced(lease_plan, is_ready=_ready_at_once)
    ),
    "begins before the victim handed over": Mutant(
        partial(run_in, **(_STEALS | {"process_ms": 900})),
        replaced(LeaseAgent, _begin_ms=_begins_at_once),
    ),
    "takes leases for expired too early": Mutant(
        partial(run_in, **_CUTS),
        replaced(FailureDetector, _at=_twice_as_fast),
        first=5,
    ),
    "never sees that time passes": Mutant(
        partial(run_in, **_weights(crash=2, join=2)),
        replaced(FailureDetector, _at=_at_the_last_look),
    ),
    "does not say what was deleted": Mutant(
        partial(run_in, **(_FAMILY | _weights(split=2, pause=2))),
        replaced(MemoryLeaseStore, delete=_delete_unseen),
        first=28,
    ),
    "makes leases again that were deleted": Mutant(
        partial(run_in, **_FAMILY),
        together(
            replaced(memory_store, creatable=_only_known),
            replaced(group_view, creatable=_only_known),
        ),
    ),
    "creates no lease": Mutant(run_in, replaced(GroupView, unknown=_never_wants_a_lease)),
    "adopts nothing": Mutant(
        partial(run_in, **(_STEALS | {"lose_answer": 0.3})),
        replaced(LeaseAgent, _reconcile=_adopts_nothing),
    ),
    "keeps a shard in which it hangs": Mutant(
        partial(run_in, **_HANGS), replaced(LeaseAgent, _give_up=_keeps)
    ),
    "leaves a shard to whom it hangs in": Mutant(
        partial(run_in, **_HANGS),
        together(
            replaced(lease_plan, _stuck=_for_anybody),
            replaced(LeaseOffers, planned=lambda _, moves, __: list(moves)),
        ),
    ),
    "does not care how long others may be silent": Mutant(
        partial(run_in, **(_CUTS | {"is_mixed": True, "latency_ms": 20})),
        replaced(FailureDetector, timeout_ms=lambda self, _: self._times.timeout_ms),
        first=8,
    ),
    "forgets that its victim may be silent for longer": Mutant(
        partial(run_in, **_HASTE), replaced(MemoryLeaseStore, take=_taken_by_its_own_timeout)
    ),
    "takes an old list of shards for a new one": Mutant(
        partial(run_in, **_MERGES),
        together(
            replaced(MemoryLeaseStore, create=_created_from_an_old_list),
            replaced(GroupView, is_listing_old=property(lambda _: False)),
        ),
    ),
    "trusts its clock too much": Mutant(
        partial(run_in, **_CUTS),
        replaced(LeaseTimes, hold_ms=property(lambda times: times.timeout_ms * 5 // 4)),
        first=5,
    ),
}
