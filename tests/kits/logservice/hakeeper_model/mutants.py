"""Bugs planted on purpose: each must be caught, or the checkers prove nothing."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from unittest import mock

import msgspec

from raftwood.logservice.hakeeper import reporting, rules, scheduling
from raftwood.logservice.hakeeper.checkers import balance, bootstrap, membership, planner, zombies
from raftwood.logservice.hakeeper.checkers.planning import Planning
from raftwood.logservice.hakeeper.commands import Schedule, Scheduled
from raftwood.logservice.hakeeper.orders import Order, OrderKind
from raftwood.logservice.hakeeper.reports import ReplicaReport
from raftwood.logservice.hakeeper.state import ShardState, State
from tests.kits.logservice.hakeeper_model.profile import Profile
from tests.kits.logservice.hakeeper_model.world import run


@contextmanager
def _kills_at_equal_epoch() -> Iterator[None]:
    def is_zombie(planning: Planning, report: ReplicaReport, store: int) -> bool:
        shard = planning.state.shards.get(report.shard)
        if shard is None:
            return report.shard in planning.state.removed_shards
        return report.epoch <= shard.epoch and store not in (*shard.voters, *shard.learners)

    with mock.patch.object(zombies, "is_zombie", is_zombie):
        yield


@contextmanager
def _kills_at_once() -> Iterator[None]:
    """Not waiting for the leader's word: one that was just added looks like a zombie."""

    def plan_zombies(planning: Planning) -> None:
        for number, store in planning.state.stores.items():
            for report in store.replicas.values():
                shard = planning.state.shards.get(report.shard)
                if (
                    shard is not None
                    and number not in (*shard.voters, *shard.learners)
                    and (report.epoch < shard.epoch or not report.voters)
                ):
                    planning.order(OrderKind.KILL_ZOMBIE, to_store=number, shard=report.shard)

    with (
        mock.patch.object(planner, "plan_zombies", plan_zombies),
        mock.patch.object(scheduling, "_is_stranger", return_value=True),
    ):
        yield


@contextmanager
def _promotes_early() -> Iterator[None]:
    with mock.patch.object(Planning, "is_caught_up", Planning.is_serving):
        yield


@contextmanager
def _removes_before_adding() -> Iterator[None]:
    original = membership._Change._add_voter

    def add_voter(change: membership._Change, *, removed: int) -> None:
        if removed and removed != change._leader:
            change._remove_voter(removed)
        else:
            original(change, removed=removed)

    with mock.patch.object(membership._Change, "_add_voter", add_voter):
        yield


@contextmanager
def _takes_older_terms() -> Iterator[None]:
    def schedule(state: State, batch: Schedule) -> Scheduled:
        return scheduling.schedule(state, msgspec.structs.replace(batch, term=state.term + 1))

    with mock.patch.object(rules, "schedule", schedule):
        yield


@contextmanager
def _believes_the_last() -> Iterator[None]:
    original = reporting._take_configuration

    def take(shard: ShardState, report: ReplicaReport, store: int) -> None:
        if report.voters and report.epoch == shard.epoch:
            shard.voters = tuple(sorted(report.voters))
            shard.learners = tuple(sorted(report.learners))
        else:
            original(shard, report, store)

    with mock.patch.object(reporting, "_take_configuration", take):
        yield


@contextmanager
def _restarts_lost_voters() -> Iterator[None]:
    with mock.patch.object(reporting, "_lose", return_value=None):
        yield


@contextmanager
def _changes_without_quorum() -> Iterator[None]:
    with mock.patch.object(Planning, "has_quorum", return_value=True):
        yield


@contextmanager
def _two_changes_at_once() -> Iterator[None]:
    with (
        mock.patch.object(Planning, "is_changing", return_value=False),
        mock.patch.object(scheduling, "MEMBERSHIP", ()),
    ):
        yield


@contextmanager
def _leaves_joint_voters_stopped() -> Iterator[None]:
    def may_start(shard: ShardState, store: int) -> bool:
        return store not in shard.lost and not shard.is_joint

    with mock.patch.object(scheduling, "_may_start", may_start):
        yield


@contextmanager
def _moves_for_ever() -> Iterator[None]:
    with mock.patch.object(balance, "DIFFERENCE", 1):
        yield


@contextmanager
def _keeps_the_holder() -> Iterator[None]:
    original = scheduling._prepare_tn

    def prepare(state: State, order: Order) -> Order | None:
        before = state.tn_shards[order.tn_shard].holder if order.tn_shard else 0
        prepared = original(state, order)
        if before and order.tn_shard in state.tn_shards:
            state.tn_shards[order.tn_shard].holder = before
        return prepared

    with mock.patch.object(scheduling, "_prepare_tn", prepare):
        yield


@contextmanager
def _begins_twice() -> Iterator[None]:
    original = scheduling._fits

    def fits(state: State, order: Order) -> bool:
        if order.kind is OrderKind.BOOTSTRAP_SHARD:
            shard = state.shards[order.shard]
            shard.founders = dict(order.members)
            return True
        return original(state, order)

    def forgets(planning: Planning) -> None:
        for shard in planning.state.shards.values():
            if shard.awaited and not shard.leader:
                shard.founders = {}
        original_plan(planning)

    original_plan = bootstrap.plan_bootstrap
    with (
        mock.patch.object(scheduling, "_fits", fits),
        mock.patch.object(planner, "plan_bootstrap", forgets),
    ):
        yield


@dataclass(frozen=True)
class Mutant:
    """A bug, and the weather in which it shows sooner than in most."""

    plant: Callable[[], AbstractContextManager[None]]
    weather: dict[str, float] = field(default_factory=dict)

    def run(self, seed: int, events: int) -> None:
        profile = replace(Profile.choose(seed), **self.weather)  # type: ignore[arg-type]
        with self.plant():
            run(seed, events, profile=profile)


_LOSSES: dict[str, float] = {"lose_heartbeat": 0.3, "lose_answer": 0.3, "crash": 0.01}
MUTANTS: dict[str, Mutant] = {
    "accepts an older term's batch": Mutant(
        _takes_older_terms, {"delay_plan": 0.5, "crash": 0.01, "restart": 0.1}
    ),
    "begins a shard twice": Mutant(_begins_twice, _LOSSES),
    "believes the last of an equal epoch": Mutant(_believes_the_last, {"fork": 0.01}),
    "changes members without a quorum": Mutant(_changes_without_quorum, {"crash": 0.01}),
    "gives an old lease to a new owner": Mutant(_keeps_the_holder, {"crash": 0.01}),
    "kills a replica at an equal epoch": Mutant(_kills_at_equal_epoch, _LOSSES | {"fork": 0.01}),
    "kills a replica that is just added": Mutant(_kills_at_once, _LOSSES),
    "leaves voters of a joint change stopped": Mutant(
        _leaves_joint_voters_stopped,
        {"crash": 0.002, "stop_replica": 0.1, "operate": 0.004, "stores": 5, "log_shards": 6}
        | {"replicas": 3, "tn_shards": 0, "restart": 0.02},
    ),
    "moves for ever": Mutant(_moves_for_ever, {"crash": 0.0}),
    "promotes before caught up": Mutant(_promotes_early, {"crash": 0.01, "write": 0.9}),
    "removes the dead before adding": Mutant(_removes_before_adding, {"crash": 0.01}),
    "restarts voters that lost their data": Mutant(
        _restarts_lost_voters, {"crash": 0.01, "wipe": 0.5}
    ),
    "two changes at once": Mutant(_two_changes_at_once, {"crash": 0.01}),
}
