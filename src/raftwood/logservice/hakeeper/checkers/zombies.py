"""Zombies: replicas that their shard has removed, or whose shard is no more.

One is removed only when its epoch is below the shard's, or when it says itself that it is out: a
replica that knows of a change that HAKeeper has not heard of yet may well be a member.
"""

from raftwood.logservice.hakeeper.checkers.planning import Planning
from raftwood.logservice.hakeeper.orders import OrderKind
from raftwood.logservice.hakeeper.reporting import is_member
from raftwood.logservice.hakeeper.reports import ReplicaReport


def plan_zombies(planning: Planning) -> None:
    state = planning.state
    for number, store in sorted(state.stores.items()):
        if number not in planning.live:
            continue
        for report in store.replicas.values():
            since = store.strange_since.get(report.shard, state.tick)
            if (
                state.tick - since >= planning.settings.zombie_ticks
                and is_zombie(planning, report, number)
                and not any(
                    order.to_store == number
                    for order in planning.under_way(report.shard, OrderKind.KILL_ZOMBIE)
                )
            ):
                planning.order(OrderKind.KILL_ZOMBIE, to_store=number, shard=report.shard)


def is_zombie(planning: Planning, report: ReplicaReport, store: int) -> bool:
    """Whether a replica belongs to nobody, as far as can be known for sure."""
    state = planning.state
    shard = state.shards.get(report.shard)
    if shard is None:
        return report.shard in state.removed_shards
    if is_member(shard, store) or planning.is_placed(report.shard, store):
        return False
    if shard.is_joint or not planning.leader(report.shard):
        return False  # The newest configuration may be one that only its leader knows.
    knows_it = (
        report.epoch == shard.epoch
        and tuple(sorted(report.voters)) == shard.voters
        and tuple(sorted(report.learners)) == shard.learners
    )
    return report.epoch < shard.epoch or knows_it
