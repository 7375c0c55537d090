"""Bugs planted on purpose: each must be caught, or the checkers prove nothing."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from msgspec import structs

from raftwood.loghub import consumer_group_rules as rules
from raftwood.loghub.consumer_group_rules import NOBODY, Facts, ShardFacts, Tenure, Tenures
from tests.kits.loghub.group_model.profile import Profile
from tests.kits.loghub.group_model.world import run

Plant = Callable[[], AbstractContextManager[Any]]


def _replaced(name: str, value: object) -> Plant:
    return lambda: mock.patch.object(rules, name, value)


@contextmanager
def _moves_at_once() -> Iterator[None]:
    original = rules._share_out

    def share_out(tenures: dict[int, Tenure], free: list[int], facts: Facts) -> None:
        before = dict(tenures)
        original(tenures, free, facts)
        for shard, tenure in tenures.items():
            if tenure != before.get(shard):
                tenures[shard] = Tenure(tenure.heir, tenure.heir)

    with mock.patch.object(rules, "_share_out", share_out):
        yield


def _told_by_heir(tenures: Tenures, consumer: str) -> list[int]:
    return sorted(shard for shard, tenure in tenures.items() if tenure.heir == consumer)


def _told_by_holder(tenures: Tenures, consumer: str) -> list[int]:
    return sorted(shard for shard, tenure in tenures.items() if tenure.holder == consumer)


@contextmanager
def _settled_after(change: Callable[[int, Tenure, Facts, Tenure | None], Tenure | None]) -> Any:
    original = rules._settled

    def settled(shard: int, tenure: Tenure, facts: Facts) -> Tenure | None:
        return change(shard, tenure, facts, original(shard, tenure, facts))

    with mock.patch.object(rules, "_settled", settled):
        yield


def _keeps_dead_heirs(_: int, before: Tenure, __: Facts, after: Tenure | None) -> Tenure | None:
    return before if after == Tenure(before.holder, before.holder) else after


def _keeps_dead_holders(_: int, before: Tenure, __: Facts, after: Tenure | None) -> Tenure | None:
    return before if after is None else after


def _keeps_what_is_over(
    shard: int, before: Tenure, facts: Facts, after: Tenure | None
) -> Tenure | None:
    is_over = shard in facts.shards and facts.shards[shard].is_over
    return before if is_over and before.holder in facts.alive else after


def _drops_the_unknown(shard: int, _: Tenure, facts: Facts, after: Tenure | None) -> Tenure | None:
    return after if shard in facts.shards or shard in facts.gone else None


def _frees_what_is_over(_: int, __: Tenure, ___: Facts, after: Tenure | None) -> Tenure | None:
    return None if after is not None and after.heir == NOBODY else after


def _lets_go_for_the_dead(
    _: int, before: Tenure, facts: Facts, after: Tenure | None
) -> Tenure | None:
    """Whoever is to have it need not live."""
    is_heir_dead = before.heir not in (before.holder, NOBODY) and before.heir not in facts.alive
    return None if is_heir_dead else after


def _releases_all(
    tenures: Mapping[int, Tenure], consumer: str, held: Collection[int]
) -> dict[int, Tenure]:
    """One that restarted lists nothing, and loses all."""
    return {
        shard: Tenure(tenure.heir, tenure.heir)
        if tenure.holder == consumer and shard not in held and tenure.heir != consumer
        else tenure
        for shard, tenure in tenures.items()
        if tenure.holder != consumer or shard in held or tenure.heir not in (consumer, NOBODY)
    }


def _releases_nothing(
    tenures: Mapping[int, Tenure],
    consumer: str,  # noqa: ARG001
    held: Collection[int],  # noqa: ARG001
) -> dict[int, Tenure]:
    return dict(tenures)


def _releases_what_is_listed(
    tenures: Mapping[int, Tenure],
    consumer: str,
    held: Collection[int],  # noqa: ARG001
) -> dict[int, Tenure]:
    return {
        shard: Tenure(tenure.heir, tenure.heir) if tenure.holder == consumer else tenure
        for shard, tenure in tenures.items()
        if tenure.holder != consumer or tenure.heir != NOBODY
    }


def _is_same_begin(older: ShardFacts, shard: ShardFacts) -> bool:
    """Not the second half of a split, nor of a merge."""
    return not older.is_over and older.id < shard.id and older.begin == shard.begin


@contextmanager
def _counts_the_dead() -> Iterator[None]:
    original = rules._share_out

    def share_out(tenures: dict[int, Tenure], free: list[int], facts: Facts) -> None:
        original(tenures, free, structs.replace(facts, alive={*facts.alive, "c0", "c1"}))

    with mock.patch.object(rules, "_share_out", share_out):
        yield


@contextmanager
def _moves_for_ever() -> Iterator[None]:
    """One more, from who has one more."""
    original = rules._share_out

    def share_out(tenures: dict[int, Tenure], free: list[int], facts: Facts) -> None:
        original(tenures, free, facts)
        owned = {name: rules.told(tenures, name) for name in sorted(facts.alive)}
        most = max(owned, key=lambda each: len(owned[each]))
        least = min(owned, key=lambda each: len(owned[each]))
        if len(owned[most]) > len(owned[least]):
            tenures[owned[most][0]] = Tenure(most, least)

    with mock.patch.object(rules, "_share_out", share_out):
        yield


@dataclass(frozen=True)
class Mutant:
    """A bug, and the weather in which it shows sooner than in most."""

    plant: Plant
    weather: dict[str, Any] = field(default_factory=dict)

    def run(self, seed: int, events: int) -> None:
        profile = replace(Profile.choose(seed), **self.weather)
        with self.plant():
            run(seed, events, profile=profile)


_ORDERED = {"is_ordered": True, "shards": 4}
_CROWD = {"consumers": 5, "shards": 7}
MUTANTS: dict[str, Mutant] = {
    "counts the dead": Mutant(_counts_the_dead, _CROWD),
    "drops shards that it does not know of yet": Mutant(
        lambda: _settled_after(_drops_the_unknown), {"stale": 0.8, "gateways": 3}
    ),
    "frees at once what is over": Mutant(lambda: _settled_after(_frees_what_is_over)),
    "keeps dead heirs": Mutant(lambda: _settled_after(_keeps_dead_heirs), _CROWD),
    "keeps dead holders": Mutant(lambda: _settled_after(_keeps_dead_holders), _CROWD),
    "keeps what is over": Mutant(lambda: _settled_after(_keeps_what_is_over)),
    "lets go of a shard as its heir dies": Mutant(
        lambda: _settled_after(_lets_go_for_the_dead), _CROWD
    ),
    "looks at the first half of a range": Mutant(_replaced("_is_before", _is_same_begin), _ORDERED),
    "lets nobody wait": Mutant(_replaced("_is_waiting", lambda *_: False), _ORDERED),
    "moves at once": Mutant(_moves_at_once, _CROWD),
    "moves for ever": Mutant(_moves_for_ever, _CROWD),
    "moves too little": Mutant(_replaced("DIFFERENCE", 3), _CROWD),
    "releases all of one that restarted": Mutant(_replaced("_released", _releases_all), _CROWD),
    "releases nothing": Mutant(_replaced("_released", _releases_nothing), _CROWD),
    "releases what is listed": Mutant(_replaced("_released", _releases_what_is_listed), _CROWD),
    "tells heirs too early": Mutant(_replaced("told", _told_by_heir), _CROWD),
    "tells holders what they are to end": Mutant(_replaced("told", _told_by_holder), _CROWD),
}
