"""Bugs planted on purpose: each must be caught, or the checkers prove nothing."""

from collections.abc import Callable
from dataclasses import replace

import msgspec

from raftwood.logservice.hakeeper import checkers, rules
from raftwood.logservice.hakeeper import rules as rules_module
from raftwood.logservice.hakeeper.checkers import PlanningRound
from raftwood.logservice.hakeeper.commands import Schedule, Scheduled
from raftwood.logservice.hakeeper.messages import Order, OrderKind, ShardReplicaReport
from raftwood.logservice.hakeeper.state import KeeperShardState, KeeperState
from tests.kits.logservice.hakeeper_model.profile import Profile
from tests.kits.logservice.hakeeper_model.world import run
from tests.kits.models import Mutant, replaced, together

_EVENTS = 4_000

_add_voter = checkers._Change._add_voter
_fits = rules_module._fits
_plan_bootstrap = checkers.plan_bootstrap
_prepare_tn = rules_module._prepare_tn
_schedule = rules_module.schedule
_take_configuration = rules_module._take_configuration


def _true(*_: object) -> bool:
    return True


def _is_zombie_at_equal_epoch(
    planning: PlanningRound, report: ShardReplicaReport, store: int
) -> bool:
    shard = planning.state.shards.get(report.shard)
    if shard is None:
        return report.shard in planning.state.removed_shards
    return report.epoch <= shard.epoch and store not in (*shard.voters, *shard.learners)


def _kill_at_once(planning: PlanningRound) -> None:
    """Not waiting for the leader's word: one that was just added looks like a zombie."""
    for number, store in planning.state.stores.items():
        for report in store.replicas.values():
            shard = planning.state.shards.get(report.shard)
            if (
                shard is not None
                and number not in (*shard.voters, *shard.learners)
                and (report.epoch < shard.epoch or not report.voters)
            ):
                planning.order(OrderKind.KILL_ZOMBIE, to_store=number, shard=report.shard)


def _remove_before_adding(change: checkers._Change, *, removed: int) -> None:
    if removed and removed != change._leader:
        change._remove_voter(removed)
    else:
        _add_voter(change, removed=removed)


def _schedule_of_any_term(state: KeeperState, batch: Schedule) -> Scheduled:
    return _schedule(state, msgspec.structs.replace(batch, term=state.term + 1))


def _believe_the_last(shard: KeeperShardState, report: ShardReplicaReport, store: int) -> None:
    if report.voters and report.epoch == shard.epoch:
        shard.voters = tuple(sorted(report.voters))
        shard.learners = tuple(sorted(report.learners))
    else:
        _take_configuration(shard, report, store)


def _may_start_unless_joint(shard: KeeperShardState, store: int) -> bool:
    return store not in shard.lost and not shard.is_joint


def _keep_the_holder(state: KeeperState, order: Order) -> Order | None:
    before = state.tn_shards[order.tn_shard].holder if order.tn_shard else 0
    prepared = _prepare_tn(state, order)
    if before and order.tn_shard in state.tn_shards:
        state.tn_shards[order.tn_shard].holder = before
    return prepared


def _fits_a_second_time(state: KeeperState, order: Order) -> bool:
    if order.kind is OrderKind.BOOTSTRAP_SHARD:
        state.shards[order.shard].founders = dict(order.members)
        return True
    return _fits(state, order)


def _plan_bootstrap_again(planning: PlanningRound) -> None:
    for shard in planning.state.shards.values():
        if shard.awaited and not shard.leader:
            shard.founders = {}
    _plan_bootstrap(planning)


def _weather(**chosen: float) -> Callable[[int], object]:
    """Runs in which a bug shows sooner than in most."""

    def run_in_it(seed: int) -> object:
        profile = replace(Profile.choose(seed), **chosen)  # type: ignore[arg-type]
        return run(seed, _EVENTS, profile=profile)

    return run_in_it


_LOSSES: dict[str, float] = {"lose_heartbeat": 0.3, "lose_answer": 0.3, "crash": 0.01}
_IN_CRASHES = _weather(crash=0.01)
_IN_LOSSES = _weather(**_LOSSES)
MUTANTS: dict[str, Mutant] = {
    "accepts an older term's batch": Mutant(
        _weather(delay_plan=0.5, crash=0.01, restart=0.1),
        replaced(rules, schedule=_schedule_of_any_term),
    ),
    "begins a shard twice": Mutant(
        _IN_LOSSES,
        together(
            replaced(rules_module, _fits=_fits_a_second_time),
            replaced(checkers, plan_bootstrap=_plan_bootstrap_again),
        ),
        first=2,
    ),
    "believes the last of an equal epoch": Mutant(
        _weather(fork=0.01), replaced(rules_module, _take_configuration=_believe_the_last), first=1
    ),
    "changes members without a quorum": Mutant(
        _IN_CRASHES, replaced(PlanningRound, has_quorum=_true), first=6
    ),
    "gives an old lease to a new owner": Mutant(
        _IN_CRASHES, replaced(rules_module, _prepare_tn=_keep_the_holder), first=1
    ),
    "kills a replica at an equal epoch": Mutant(
        _weather(**_LOSSES, fork=0.01),
        replaced(checkers, is_zombie=_is_zombie_at_equal_epoch),
        first=7,
    ),
    "kills a replica that is just added": Mutant(
        _IN_LOSSES,
        together(
            replaced(checkers, plan_zombies=_kill_at_once),
            replaced(rules_module, _is_stranger=_true),
        ),
    ),
    "leaves voters of a joint change stopped": Mutant(
        _weather(
            crash=0.002,
            stop_replica=0.1,
            operate=0.004,
            stores=5,
            log_shards=6,
            replicas=3,
            tn_shards=0,
            restart=0.02,
        ),
        replaced(rules_module, _may_start=_may_start_unless_joint),
        first=3,
    ),
    "moves for ever": Mutant(_weather(crash=0.0), replaced(checkers, DIFFERENCE=1), first=5),
    "promotes before caught up": Mutant(
        _weather(crash=0.01, write=0.9),
        replaced(PlanningRound, is_caught_up=PlanningRound.is_serving),
    ),
    "removes the dead before adding": Mutant(
        _IN_CRASHES, replaced(checkers._Change, _add_voter=_remove_before_adding)
    ),
    "restarts voters that lost their data": Mutant(
        _weather(crash=0.01, wipe=0.5), replaced(rules_module, _lose=lambda *_: None)
    ),
    "two changes at once": Mutant(
        _IN_CRASHES,
        together(
            replaced(PlanningRound, is_changing=lambda *_: False),
            replaced(rules_module, MEMBERSHIP=()),
        ),
    ),
}
