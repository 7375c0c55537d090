"""Where a shard begins: on the stores that live, once enough have reported.

Where too few live after a grace time, named stores that are still to come fill up, as long as a
majority lives: the shard works without them, and they join as founders or are replaced.
"""

from raftwood.logservice.hakeeper.checkers.planning import Planning, majority, placement_key
from raftwood.logservice.hakeeper.orders import OrderKind
from raftwood.logservice.hakeeper.state import ShardState


def plan_bootstrap(planning: Planning) -> None:
    """Place shards that have not begun, and tell founders that have not heard of it."""
    for number, shard in planning.state.shards.items():
        members = shard.founders or _place(planning, shard)
        awaited = shard.awaited if shard.founders else list(members)
        for store in awaited:
            if not any(
                order.to_store == store
                for order in planning.under_way(number, OrderKind.BOOTSTRAP_SHARD)
            ):
                planning.order(
                    OrderKind.BOOTSTRAP_SHARD, to_store=store, shard=number, members=members
                )


def _place(planning: Planning, shard: ShardState) -> dict[int, str]:
    places = planning.places()
    is_waiting = planning.state.tick - shard.created_tick < planning.settings.bootstrap_grace_ticks
    named = sorted({*planning.state.members, *planning.state.stores})
    absent = [
        store for store in named if store not in planning.live and not planning.is_draining(store)
    ]
    if is_waiting and len(places) < shard.replicas:
        return {}
    if len(places) < majority(range(shard.replicas)):
        return {}
    chosen: list[int] = []
    for candidates in (places, absent):
        rest = list(candidates)
        while rest and len(chosen) < shard.replicas:
            best = min(rest, key=lambda store: placement_key(planning, store, chosen))
            rest.remove(best)
            chosen.append(best)
    if len(chosen) < shard.replicas:
        return {}
    return {store: planning.address(store) for store in sorted(chosen)}
