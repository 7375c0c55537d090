"""Room on disks: a leader whose store takes no more appends hands over to one that does."""

from raftwood.logservice.hakeeper.checkers.planning import Planning
from raftwood.logservice.hakeeper.orders import OrderKind
from raftwood.logservice.hakeeper.reports import HAKEEPER_SHARD


def plan_room(planning: Planning) -> None:
    """HAKeeper's own shard is left: its commands are small, and taken as long as any are."""
    stores = planning.state.stores
    for number, shard in planning.state.shards.items():
        leader = planning.leader(number)
        if (
            number == HAKEEPER_SHARD
            or leader == 0
            or planning.has_room(leader)
            or planning.is_changing(number)
        ):
            continue
        ready = [
            store
            for store in shard.voters
            if planning.has_room(store)
            and not planning.is_draining(store)
            and planning.is_caught_up(number, store)
        ]
        # One whose disk is slow gives it back, but takes appends.
        ready = [store for store in ready if not planning.is_slow(store)] or ready
        if ready:
            roomiest = max(ready, key=lambda store: (stores[store].disk_free_bytes, -store))
            planning.order(OrderKind.TRANSFER_LEADER, to_store=leader, shard=number, store=roomiest)
