"""Balance: replicas and leaders are spread, one move at a time, while all else is well.

Each move makes things strictly better (more failure domains, or less difference of load), so that
moves come to an end.
"""

from raftwood.logservice.hakeeper.checkers.membership import is_free, place
from raftwood.logservice.hakeeper.checkers.planning import Planning
from raftwood.logservice.hakeeper.orders import OrderKind
from raftwood.logservice.hakeeper.reports import HAKEEPER_SHARD

DIFFERENCE = 2
"""Smaller ones are left: moving would only swap the two."""


def plan_balance(planning: Planning) -> None:
    state = planning.state
    if state.tick % planning.settings.moves_every_ticks or planning.orders or state.orders:
        return
    if any(planning.is_silent(store) for store in planning.places()):
        return
    if not all(_is_well(planning, number) for number in state.shards):
        return
    if not _spread(planning) and not _level_replicas(planning):
        _level_leaders(planning)


def _is_well(planning: Planning, number: int) -> bool:
    shard = planning.state.shards[number]
    members = (*shard.voters, *shard.learners)
    return (
        len(shard.voters) == shard.replicas
        and len(shard.learners) == shard.learners_wanted
        and shard.move is None
        and not shard.is_joint
        and planning.leader(number) != 0
        and all(planning.is_serving(number, store) for store in members)
        and not any(planning.is_draining(store) for store in members)
    )


def _spread(planning: Planning) -> bool:
    """Move a voter that shares its failure domain to a domain that has none."""
    for number, shard in planning.state.shards.items():
        used = [planning.domain(store) for store in shard.voters]
        sharing = [store for store in shard.voters if used.count(planning.domain(store)) > 1]
        targets = [
            store
            for store in planning.places()
            if planning.domain(store) not in used and _is_fit(planning, number, store)
        ]
        if sharing and targets and number != HAKEEPER_SHARD:
            source = max(sharing, key=planning.load)
            place(planning, number, min(targets, key=planning.load), removed=source)
            return True
    return False


def _is_fit(planning: Planning, number: int, store: int) -> bool:
    """Whether a replica may move to a store; not to one that may never be let in."""
    return is_free(planning, number, store) and not planning.is_reborn(store)


def _level_replicas(planning: Planning) -> bool:
    places = sorted(planning.places(), key=planning.load)
    for source in reversed(places):
        for target in places:
            if planning.load(source) - planning.load(target) < DIFFERENCE:
                break
            for number, shard in planning.state.shards.items():
                if (
                    number != HAKEEPER_SHARD
                    and source in shard.voters
                    and _is_fit(planning, number, target)
                    and _domains_after(planning, number, source=source, target=target)
                ):
                    place(planning, number, target, removed=source)
                    return True
    return False


def _domains_after(planning: Planning, number: int, *, source: int, target: int) -> bool:
    """Whether a move keeps at least as many failure domains."""
    voters = planning.state.shards[number].voters
    before = {planning.domain(store) for store in voters}
    after = {planning.domain(store) for store in (*voters, target) if store != source}
    return len(after) >= len(before)


def _level_leaders(planning: Planning) -> None:
    led = dict.fromkeys(planning.places(), 0)
    for number in planning.state.shards:
        led[planning.leader(number)] = led.get(planning.leader(number), 0) + 1
    places = sorted(planning.places(), key=lambda store: led[store])
    # One whose disk is slow would give up at once what it is given to lead.
    targets = [store for store in places if not planning.is_slow(store)]
    for source in reversed(places):
        for target in targets:
            if led[source] - led[target] < DIFFERENCE:
                break
            for number, shard in planning.state.shards.items():
                if (
                    number != HAKEEPER_SHARD
                    and planning.leader(number) == source
                    and target in shard.voters
                    and planning.is_caught_up(number, target)
                    and planning.has_room(target)
                ):
                    planning.order(
                        OrderKind.TRANSFER_LEADER, to_store=source, shard=number, store=target
                    )
                    return
