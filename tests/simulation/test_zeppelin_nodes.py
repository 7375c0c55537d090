"""Whole nodes in virtual time: what was called done stays, nothing else does, one master serves."""

import pytest

from raftwood.zeppelin.model import TableConfig
from tests.kits.zeppelin.simulation import run
from tests.kits.zeppelin.simulation.mutants import MUTANTS
from tests.kits.zeppelin.simulation.world import FAST, SAFE, run_cut_off
from tests.kits.zeppelin.violations import Broken, Harm

SEEDS = 6
MUTANT_SEEDS = 30


@pytest.mark.slow
@pytest.mark.parametrize("share", range(2))
def test_nodes_keep_what_was_done_and_become_equal_whatever_happens(share: int) -> None:
    outcomes = [run(seed).result for seed in range(share, SEEDS, 2)]
    for name in ("failovers", "handovers"):
        assert sum(getattr(outcome, name) for outcome in outcomes), name


@pytest.mark.slow
def test_a_seed_gives_the_same_run_twice() -> None:
    run(1, twice=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "harm", "config", "likely"),
    [
        ("stale offsets choose a master", Harm.LOST, SAFE, 3),
        ("no lease", Harm.TWO_MASTERS, FAST, 2),
        ("divergence is not undone", Harm.GHOST, SAFE, 1),
        ("relative times to live", Harm.GHOST, SAFE, 0),
        ("the engine is ahead of the binlog", Harm.STALLED, FAST, 0),
    ],
)
def test_a_planted_bug_is_caught_by_what_it_breaks(
    mutant: str, harm: Harm, config: TableConfig, likely: int
) -> None:
    """Some seed shows it, and none shows something else before; `likely` is tried first."""
    for seed in (likely, *range(MUTANT_SEEDS)):
        try:
            with MUTANTS[mutant]():
                run(seed, config=config)
        except Broken as broken:
            assert broken.harm is harm
            return
    pytest.fail(f"not caught by {MUTANT_SEEDS} seeds: {mutant}")


def test_a_slave_follows_its_master_also_where_it_does_not_reach_the_meta_server() -> None:
    run_cut_off(1)


def test_nodes_that_ask_for_equal_epochs_of_the_whole_topology_are_caught() -> None:
    with MUTANTS["global epochs have to be equal"](), pytest.raises(Broken) as caught:
        run_cut_off(1)
    assert caught.value.harm is Harm.STALLED
