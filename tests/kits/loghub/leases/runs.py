"""One seeded run: some T of chaos, then peace, in which everything has to come right."""

from dataclasses import dataclass, replace
from typing import Any

from tests.kits.loghub.leases.profile import Profile
from tests.kits.loghub.leases.world import World
from tests.kits.models import Violation

SETTLE_TIMEOUTS = 4.5
"""A death is noticed within 1.5 T, a hand-over takes T at most; each has a plan within T/2."""
CALM_TIMEOUTS = 2
READ_TIMEOUTS = 60


@dataclass(frozen=True)
class Report:
    """What a run came to."""

    events: int
    moves: int
    steals: int
    starts: int
    processed: int
    duplicates: int
    overruns: int
    crashes: int
    hangs: int
    faults_s: float


def run(seed: int, profile: Profile | None = None) -> Report:
    profile = profile or Profile.choose(seed)
    world = World(seed, profile)
    chaos_ms = profile.chaos_timeouts * world.times.timeout_ms
    while world.now < chaos_ms:
        world.run_for(world.random.expovariate(1 / profile.pace_ms))
        world.befall()
    faults_s = 0.0 if profile.is_graceful else world.now / 1000
    world.heal()
    _settle(world)
    oracle = world.oracle
    if profile.is_graceful and oracle.duplicates:
        raise Violation(f"{oracle.duplicates} duplicates, though nothing failed")
    return Report(
        world.events,
        world.store.moves,
        world.store.steals,
        world.starts,
        oracle.processed,
        oracle.duplicates,
        oracle.overruns,
        sum(not worker.is_up for worker in world.workers),
        world.hangs,
        faults_s,
    )


def run_in(seed: int, **weather: Any) -> Report:
    """The seed chooses the profile, but for what `weather` names."""
    return run(seed, replace(Profile.choose(seed), **weather))


def _settle(world: World) -> None:
    """Properties 2, 6, 8, 9 and 10."""
    timeout_ms = world.times.timeout_ms
    world.run_for(SETTLE_TIMEOUTS * timeout_ms)
    for _ in range(READ_TIMEOUTS):
        if _is_read(world):
            break
        world.run_for(timeout_ms)
    # Ends of shards change who is to have what.
    world.run_for(2 * timeout_ms)
    world.oracle.all_is_read()
    live = [worker.owner.process for worker in world.up()]
    world.oracle.all_is_settled(world.store.leases, live)
    moves = world.store.moves
    is_even = not (world.profile.by_bytes or world.profile.hangs_on)
    if is_even and world.spread() > 1:
        raise Violation(f"two workers differ by {world.spread()}")
    world.run_for(CALM_TIMEOUTS * timeout_ms)
    if world.store.moves != moves:
        raise Violation(f"{world.store.moves - moves} moves after all was balanced")


def _is_read(world: World) -> bool:
    sealed = [shard for shard in world.oracle.shards.values() if shard.is_sealed]
    leases = world.store.leases
    return all(shard.is_read() for shard in world.oracle.shards.values()) and all(
        shard.name not in leases or leases[shard.name].is_ended for shard in sealed
    )
