"""What a cluster without faults has to come to: all well, spread and quiet."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from raftwood.logservice.hakeeper.state import ClusterPhase
from tests.kits.models import Violation

if TYPE_CHECKING:
    from tests.kits.logservice.hakeeper_model.world import World


def check_end(world: World) -> None:
    if world.state.phase is not ClusterPhase.RUNNING:
        raise Violation(f"the cluster is {world.state.phase}: {world.state.reason}")
    stores = len(living(world))
    for number, shard in world.state.shards.items():
        if shard.replicas > stores:
            continue
        learners = min(shard.learners_wanted, stores - shard.replicas)
        if len(shard.voters) != shard.replicas or len(shard.learners) != learners:
            raise Violation(
                f"shard {number} has voters {shard.voters} of {shard.replicas} and learners "
                f"{shard.learners} of {learners}"
            )
        group = world.groups[number]
        if not group.leader or shard.leader != group.leader:
            raise Violation(f"shard {number} is led by {shard.leader}, really {group.leader}")
        members = (*shard.voters, *shard.learners)
        if not all(world.takes_part(group, store) for store in members):
            raise Violation(f"a member of shard {number} among {members} does not run")
    _check_remains(world)
    _check_balance(world)
    _check_services(world)


def living(world: World) -> list[int]:
    return [number for number in world.state.stores if world.stores[number].is_up]


def _check_remains(world: World) -> None:
    for number, group in world.groups.items():
        for store, replica in group.replicas.items():
            is_member = number in world.state.shards and group.now.has(store)
            is_there = world.takes_part(group, store) and not replica.is_empty
            if is_there and not is_member:
                raise Violation(f"store {store} still has a zombie of shard {number}")


def _check_balance(world: World) -> None:
    if world.profile.domains or any(s.learners_wanted for s in world.state.shards.values()):
        return  # Failure domains come first, and learners stay.
    stores = living(world)
    load, led = Counter(dict.fromkeys(stores, 0)), Counter(dict.fromkeys(stores, 0))
    for shard in world.state.shards.values():
        if shard.replicas > len(stores):
            return
        load.update(shard.voters)
        led[shard.leader] += 1
    # Nothing is moved to a store that lost its data: it may never be let in.
    fit = [each for each in stores if not world.state.stores[each].is_reborn]
    if fit and max(load.values()) - min(load[each] for each in fit) > 2:
        raise Violation(f"replicas are not balanced: {load}")
    if fit and max(led.values()) - min(led[each] for each in fit) > 2:
        raise Violation(f"leaders are not balanced: {led}")


def _check_services(world: World) -> None:
    for number, shard in world.state.tn_shards.items():
        owners = [s.name for s in world.services.all if number in s.owned]
        if owners != [shard.owner]:
            raise Violation(f"TN shard {number} of {shard.owner} is owned by {owners}")
