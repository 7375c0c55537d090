"""Bugs planted on purpose: each must be caught, or the checkers prove nothing."""

from collections.abc import Callable, Collection, Mapping
from functools import partial

from msgspec import structs

from raftwood.loghub.server import consumer_group_rules as rules
from raftwood.loghub.server.consumer_group_rules import (
    NOBODY,
    GroupFacts,
    ShardFacts,
    ShardTenure,
    Tenures,
)
from tests.kits.loghub.group_model.world import run
from tests.kits.models import Mutant, Plant, replaced

EVENTS = 2_000
_share_out = rules._share_out
_settled = rules._settled


def _moves_at_once(tenures: dict[int, ShardTenure], free: list[int], facts: GroupFacts) -> None:
    before = dict(tenures)
    _share_out(tenures, free, facts)
    for shard, tenure in tenures.items():
        if tenure != before.get(shard):
            tenures[shard] = ShardTenure(tenure.heir, tenure.heir)


def _told_by_heir(tenures: Tenures, consumer: str) -> list[int]:
    return sorted(shard for shard, tenure in tenures.items() if tenure.heir == consumer)


def _told_by_holder(tenures: Tenures, consumer: str) -> list[int]:
    return sorted(shard for shard, tenure in tenures.items() if tenure.holder == consumer)


def _settled_after(
    change: Callable[[int, ShardTenure, GroupFacts, ShardTenure | None], ShardTenure | None],
) -> Plant:
    def settled(shard: int, tenure: ShardTenure, facts: GroupFacts) -> ShardTenure | None:
        return change(shard, tenure, facts, _settled(shard, tenure, facts))

    return replaced(rules, _settled=settled)


def _keeps_dead_heirs(
    _: int, before: ShardTenure, __: GroupFacts, after: ShardTenure | None
) -> ShardTenure | None:
    return before if after == ShardTenure(before.holder, before.holder) else after


def _keeps_dead_holders(
    _: int, before: ShardTenure, __: GroupFacts, after: ShardTenure | None
) -> ShardTenure | None:
    return before if after is None else after


def _keeps_what_is_over(
    shard: int, before: ShardTenure, facts: GroupFacts, after: ShardTenure | None
) -> ShardTenure | None:
    is_over = shard in facts.shards and facts.shards[shard].is_over
    return before if is_over and before.holder in facts.alive else after


def _drops_the_unknown(
    shard: int, _: ShardTenure, facts: GroupFacts, after: ShardTenure | None
) -> ShardTenure | None:
    return after if shard in facts.shards or shard in facts.gone else None


def _frees_what_is_over(
    _: int, __: ShardTenure, ___: GroupFacts, after: ShardTenure | None
) -> ShardTenure | None:
    return None if after is not None and after.heir == NOBODY else after


def _lets_go_for_the_dead(
    _: int, before: ShardTenure, facts: GroupFacts, after: ShardTenure | None
) -> ShardTenure | None:
    """Whoever is to have it need not live."""
    is_heir_dead = before.heir not in (before.holder, NOBODY) and before.heir not in facts.alive
    return None if is_heir_dead else after


def _releases_all(
    tenures: Mapping[int, ShardTenure], consumer: str, held: Collection[int]
) -> dict[int, ShardTenure]:
    """One that restarted lists nothing, and loses all."""
    return {
        shard: ShardTenure(tenure.heir, tenure.heir)
        if tenure.holder == consumer and shard not in held and tenure.heir != consumer
        else tenure
        for shard, tenure in tenures.items()
        if tenure.holder != consumer or shard in held or tenure.heir not in (consumer, NOBODY)
    }


def _releases_nothing(
    tenures: Mapping[int, ShardTenure],
    consumer: str,  # noqa: ARG001
    held: Collection[int],  # noqa: ARG001
) -> dict[int, ShardTenure]:
    return dict(tenures)


def _releases_what_is_listed(
    tenures: Mapping[int, ShardTenure],
    consumer: str,
    held: Collection[int],  # noqa: ARG001
) -> dict[int, ShardTenure]:
    return {
        shard: ShardTenure(tenure.heir, tenure.heir) if tenure.holder == consumer else tenure
        for shard, tenure in tenures.items()
        if tenure.holder != consumer or tenure.heir != NOBODY
    }


def _is_same_begin(older: ShardFacts, shard: ShardFacts) -> bool:
    """Not the second half of a split, nor of a merge."""
    return not older.is_over and older.id < shard.id and older.begin == shard.begin


def _counts_the_dead(tenures: dict[int, ShardTenure], free: list[int], facts: GroupFacts) -> None:
    _share_out(tenures, free, structs.replace(facts, alive={*facts.alive, "c0", "c1"}))


def _moves_for_ever(tenures: dict[int, ShardTenure], free: list[int], facts: GroupFacts) -> None:
    """One more, from who has one more."""
    _share_out(tenures, free, facts)
    owned = {name: rules.told(tenures, name) for name in sorted(facts.alive)}
    most = max(owned, key=lambda each: len(owned[each]))
    least = min(owned, key=lambda each: len(owned[each]))
    if len(owned[most]) > len(owned[least]):
        tenures[owned[most][0]] = ShardTenure(most, least)


_in_any_weather = partial(run, events=EVENTS)
_ordered = partial(run, events=EVENTS, is_ordered=True, shards=4)
_crowded = partial(run, events=EVENTS, consumers=5, shards=7)
_stale = partial(run, events=EVENTS, stale=0.8, gateways=3)
MUTANTS = {
    "counts the dead": Mutant(_crowded, replaced(rules, _share_out=_counts_the_dead)),
    "drops shards that it does not know of yet": Mutant(_stale, _settled_after(_drops_the_unknown)),
    "frees at once what is over": Mutant(
        _in_any_weather, _settled_after(_frees_what_is_over), first=21
    ),
    "keeps dead heirs": Mutant(_crowded, _settled_after(_keeps_dead_heirs), first=2),
    "keeps dead holders": Mutant(_crowded, _settled_after(_keeps_dead_holders)),
    "keeps what is over": Mutant(_in_any_weather, _settled_after(_keeps_what_is_over)),
    "lets go of a shard as its heir dies": Mutant(
        _crowded, _settled_after(_lets_go_for_the_dead), first=8
    ),
    "looks at the first half of a range": Mutant(
        _ordered, replaced(rules, _is_before=_is_same_begin)
    ),
    "lets nobody wait": Mutant(_ordered, replaced(rules, _is_waiting=lambda *_: False)),
    "moves at once": Mutant(_crowded, replaced(rules, _share_out=_moves_at_once)),
    "moves for ever": Mutant(_crowded, replaced(rules, _share_out=_moves_for_ever)),
    "moves too little": Mutant(_crowded, replaced(rules, DIFFERENCE=3)),
    "releases all of one that restarted": Mutant(
        _crowded, replaced(rules, _released=_releases_all)
    ),
    "releases nothing": Mutant(_crowded, replaced(rules, _released=_releases_nothing)),
    "releases what is listed": Mutant(
        _crowded, replaced(rules, _released=_releases_what_is_listed)
    ),
    "tells heirs too early": Mutant(_crowded, replaced(rules, told=_told_by_heir)),
    "tells holders what they are to end": Mutant(_crowded, replaced(rules, told=_told_by_holder)),
}
