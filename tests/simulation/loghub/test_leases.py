"""Workers that share shards: who gets what within which time, where one thing happens."""

from dataclasses import replace
from typing import Any

import pytest

from tests.kits.loghub.leases import run
from tests.kits.loghub.leases.oracle import counts
from tests.kits.loghub.leases.profile import TIMES, Profile
from tests.kits.loghub.leases.world import World

QUIET: dict[str, Any] = {
    "lose_request": 0.0,
    "lose_answer": 0.0,
    "late": 0.0,
    "latency_ms": 20,
    "process_ms": 50,
    "by_bytes": False,
    "is_mixed": False,
}


def _quiet(seed: int, *, workers: int, shards: int) -> World:
    """A world in which only the test does anything."""
    profile = replace(Profile.choose(seed), workers=workers, shards=shards, **QUIET)
    return World(seed, profile)


def _run_for(world: World, timeouts: float) -> None:
    world.run_for(timeouts * TIMES.timeout_ms)


def test_faults_break_no_promise() -> None:
    reports = [run(seed) for seed in range(12)]
    # A run in which nothing fails would keep all promises.
    assert sum(report.crashes for report in reports) > 20


def test_a_seed_repeats_its_run() -> None:
    assert run(5) == run(5)


@pytest.mark.parametrize("seed", range(3))
def test_workers_that_join_get_their_share_in_one_round_with_the_fewest_moves(seed: int) -> None:
    world = _quiet(seed, workers=1, shards=40)
    _run_for(world, 3)
    moves = world.store.moves
    assert moves == 40
    for _ in range(3):
        world.join()
    # A scan is due within T/2, and a steal needs two looks that agree.
    _run_for(world, 1)
    assert sorted(counts(world.store.leases, []).values()) == [10, 10, 10, 10]
    assert world.store.moves - moves == 30
    _run_for(world, 5)
    assert world.store.moves - moves == 30
    assert world.oracle.duplicates == 0


@pytest.mark.parametrize("seed", range(0, 20, 3))
def test_orphans_are_read_again_within_twice_the_timeout(seed: int) -> None:
    world = _quiet(seed, workers=3, shards=6)
    _run_for(world, 3 + seed / 20)
    victim = world.up()[seed % 3]
    orphans = list(victim.consumers)
    assert orphans
    moves = world.store.moves
    victim.crash()
    _run_for(world, 2)
    live = [worker.owner.process for worker in world.up()]
    for shard in orphans:
        assert world.store.leases[shard].consumer_process in live
    assert world.spread() <= 1
    assert world.store.moves - moves == len(orphans)


@pytest.mark.parametrize("seed", range(0, 12, 3))
def test_one_that_joins_after_a_death_does_not_hold_up_the_orphans(seed: int) -> None:
    world = _quiet(seed, workers=2 + seed % 3, shards=6)
    _run_for(world, 3 + seed / 12)
    victim = world.up()[seed % 2]
    orphans = list(victim.consumers)
    victim.crash()
    _run_for(world, 0.6)
    world.join()
    _run_for(world, 1.4)
    live = [worker.owner.process for worker in world.up()]
    for shard in orphans:
        assert world.store.leases[shard].consumer_process in live
    _run_for(world, 2)
    assert world.spread() <= 1
    moves = world.store.moves
    _run_for(world, 3)
    assert world.store.moves == moves


@pytest.mark.parametrize("seed", range(4))
def test_a_shard_whose_worker_hangs_for_ever_is_read_by_another(seed: int) -> None:
    world = _quiet(seed, workers=1 + seed % 3, shards=6)
    _run_for(world, 3)
    victim = world.up()[0]
    victim.hangs_until = float("inf")
    for shard in world.open_shards():
        shard.length += 5
    if seed % 3 == 0:
        _run_for(world, 8)
        assert len(victim.consumers) == 6  # there is nobody else, and it waits for its calls
        world.join()
    # A call has up to T, and T beyond it; then all others wait for T, and look each T/2.
    _run_for(world, 4)
    world.oracle.all_is_read()
    assert all(consumer.is_told_to_stop for consumer in victim.consumers.values())
    moves = world.store.moves
    _run_for(world, 5)
    assert world.store.moves == moves
    victim.hangs_until = 0.0
    _run_for(world, 3)
    world.oracle.all_is_settled(world.store.leases, [each.owner.process for each in world.up()])
    assert world.spread() <= 1


@pytest.mark.parametrize("seed", range(3))
def test_a_shard_whose_worker_hung_before_its_last_one_died_is_read_by_another(seed: int) -> None:
    world = _quiet(seed, workers=2, shards=1 + seed % 3)
    _run_for(world, 3)
    hanging, heir = sorted(world.up(), key=lambda worker: -len(worker.consumers))
    hanging.hangs_until = float("inf")
    for shard in world.open_shards():
        shard.length += 5
    _run_for(world, 8)
    world.oracle.all_is_read()
    heir.crash()
    world.join()
    for shard in world.open_shards():
        shard.length += 5
    # Noticed after T, waited for during 2T, looked at each T/2.
    _run_for(world, 6)
    world.oracle.all_is_read()


@pytest.mark.parametrize("seed", range(3))
def test_a_clean_exit_frees_its_shards_at_once(seed: int) -> None:
    world = _quiet(seed, workers=2, shards=6)
    _run_for(world, 3)
    world.up()[0].leave()
    _run_for(world, 0.7)
    assert len(world.up()) == 1
    assert len(world.up()[0].consumers) == 6
    assert world.oracle.duplicates == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_store_that_was_away_is_found_again_and_nothing_moves(seed: int) -> None:
    world = _quiet(seed, workers=3, shards=6)
    _run_for(world, 3)
    held = {worker.owner.process: sorted(worker.consumers) for worker in world.up()}
    moves = world.store.moves
    world.is_store_away = True
    _run_for(world, 1.2)
    assert all(not worker.consumers for worker in world.up())
    _run_for(world, 1.8)
    world.is_store_away = False
    _run_for(world, 1.5)
    assert {worker.owner.process: sorted(worker.consumers) for worker in world.up()} == held
    assert world.store.moves == moves
    assert world.oracle.duplicates == 0
