"""The replicated toy is linearizable for 0.2 simulated hours of faults; planted bugs are found."""

import pytest

from tests.kits.models import run_seeds, weathers
from tests.kits.testing.toy.cluster import Toy, run_toy
from tests.kits.testing.toy.mutants import MUTANTS

FAULTS_S = 720.0
SHARES = 4


@pytest.mark.parametrize("share", range(SHARES))
def test_faults_break_no_promise(share: int) -> None:
    def run(seed: int) -> float:
        outcome = run_toy(seed, Toy(faults_s=60.0, pause_s=0.6)).result
        # A run in which nothing is answered would keep all promises.
        assert sum(event.outcome == "ok" for event in outcome.events) > outcome.operations / 5
        return outcome.faults_s if outcome.faults else 0.0

    run_seeds(100 * share, run, until=FAULTS_S / SHARES)


@pytest.mark.parametrize("seed", range(2))
def test_a_seed_runs_the_same_twice(seed: int) -> None:
    outcome = run_toy(seed, Toy(faults_s=10.0), twice=True).result
    assert sum(event.outcome == "ok" for event in outcome.events) > 40


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch()


@pytest.mark.parametrize("name", weathers(MUTANTS))
def test_without_the_bug_the_same_faults_do_no_harm(name: str) -> None:
    MUTANTS[name].run(MUTANTS[name].first)
