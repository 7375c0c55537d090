"""Bugs planted in the raft host are found; the table names where each well-known one is."""

import pytest

from raftwood.simulation import SimulationError
from tests.kits.raft.hosts.cluster import run_hosts
from tests.kits.raft.hosts.mutants import CAUGHT_BY, MUTANTS
from tests.kits.raft.model.mutants import MUTANTS as MODEL_MUTANTS
from tests.kits.simulation.seeds import promising

SEEDS_MAX = 80
PROMISING = {
    "reads join a round under way": 11,
    "stores changes without the commit index": 7,
}
"""Seeds to begin with: those before show nothing."""


def test_every_well_known_bug_is_planted_somewhere() -> None:
    planted = {"hosts": list(MUTANTS), "model": list(MODEL_MUTANTS)}
    assert len(CAUGHT_BY) >= 10
    for name, places in CAUGHT_BY.items():
        assert places, name
        for place, mutant in places.items():
            assert mutant in planted[place], name


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    for seed in promising(PROMISING.get(name, 0), SEEDS_MAX):
        try:
            MUTANTS[name].run(seed)
        except (AssertionError, SimulationError):
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not show that a host {name}")


def _different_weathers() -> list[str]:
    """A mutant for each combination of faults and cluster."""
    found = {
        (mutant.profile.__name__, mutant.cluster.change_every_s): name
        for name, mutant in MUTANTS.items()
    }
    return list(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", _different_weathers())
def test_without_the_bug_the_same_faults_do_no_harm(name: str) -> None:
    mutant = MUTANTS[name]
    for seed in range(3):
        run_hosts(seed, mutant.whole, profile=mutant.profile(seed))
