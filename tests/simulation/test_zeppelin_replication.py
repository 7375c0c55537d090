"""Nodes that replicate partitions in virtual time: what was called done stays, and nothing else."""

from collections.abc import Callable

import pytest

from raftwood.zeppelin.replication import following, leading
from tests.simulation.zeppelin import run
from tests.simulation.zeppelin.mutants import (
    GlobalEpochs,
    NoLease,
    StaleOffsets,
    counts_ttl_from_arrival,
    streams_whatever,
    touches_nothing,
)
from tests.zeppelin_kit.image_store import ImageStore
from tests.zeppelin_kit.violations import Broken, Harm

SEEDS = 12
DISK_SEEDS = 5
MUTANT_SEEDS = 30


def assert_caught(harm: Harm, attempt: Callable[[int], object], *, likely: int = 0) -> None:
    """Some seed shows what the bug breaks, and none shows something else before.

    `likely` is a seed that has shown it, and is tried first.
    """
    for seed in (likely, *range(MUTANT_SEEDS)):
        try:
            attempt(seed)
        except Broken as broken:
            assert broken.harm is harm
            return
    pytest.fail(f"not caught by {MUTANT_SEEDS} seeds: {harm}")


@pytest.mark.slow
@pytest.mark.parametrize("share", range(2))
def test_replicas_keep_what_was_done_and_become_equal_whatever_happens(share: int) -> None:
    outcomes = [run(seed).result for seed in range(share, SEEDS, 2)]
    assert min(outcome.done for outcome in outcomes) > 100
    for name in ("failovers", "rewinds", "copies"):
        assert sum(getattr(outcome, name) for outcome in outcomes), name


@pytest.mark.slow
def test_the_same_holds_with_engines_and_binlogs_on_disks_that_lose_power() -> None:
    outcomes = [run(seed, is_on_disk=True).result for seed in range(DISK_SEEDS)]
    assert sum(outcome.rewinds for outcome in outcomes)


@pytest.mark.slow
def test_a_seed_gives_the_same_run_twice() -> None:
    run(1, twice=True)


@pytest.mark.slow
def test_a_master_chosen_by_stale_offsets_loses_writes() -> None:
    assert_caught(Harm.LOST, lambda seed: run(seed, meta=StaleOffsets), likely=9)


@pytest.mark.slow
def test_without_a_lease_two_masters_call_writes_done() -> None:
    assert_caught(Harm.TWO_MASTERS, lambda seed: run(seed, replicator=NoLease), likely=0)


@pytest.mark.slow
def test_divergence_that_is_not_undone_leaves_ghosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageStore, "touched", touches_nothing)
    assert_caught(Harm.GHOST, run, likely=6)


@pytest.mark.slow
def test_divergence_that_is_not_noticed_is_never_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "answer", streams_whatever)
    assert_caught(Harm.STALLED, run)


@pytest.mark.slow
def test_relative_times_to_live_differ_between_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "as_arrived", counts_ttl_from_arrival)
    assert_caught(Harm.GHOST, run)


@pytest.mark.slow
def test_equality_of_global_epochs_stalls_replication() -> None:
    assert_caught(Harm.STALLED, lambda seed: run(seed, replicator=GlobalEpochs))
