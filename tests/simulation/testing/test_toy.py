"""The replicated toy is linearizable under faults, and a run that fails tells how to repeat it."""

import pytest

from raftwood.testing import SwarmProfile
from tests.kits.testing.toy.cluster import Toy, run_toy
from tests.kits.testing.toy.mutants import MUTANTS


def test_a_short_run_is_linearizable_and_the_same_twice() -> None:
    profile = SwarmProfile(seed=1, every_s={"power_loss_of_all": 3.0, "kill": 3.0, "reset": 3.0})
    outcome = run_toy(1, Toy(faults_s=6.0), profile=profile, twice=True).result
    assert set(outcome.faults) == {"power_loss_of_all", "kill", "reset"}


def test_a_calm_run_is_under_load_and_nothing_fails_in_it() -> None:
    profile = SwarmProfile(seed=1, every_s={"wall_jump": 1.0}, drift=0.05)
    outcome = run_toy(1, Toy(faults_s=6.0), profile=profile).result
    assert outcome.is_under_load
    asked = [event for event in outcome.events if event.client != "auditor" and event.called > 1.0]
    assert {event.outcome for event in asked} == {"ok"}


def test_a_failing_seed_says_how_to_repeat_it() -> None:
    mutant = MUTANTS["forgets its log"]
    with mutant.plant(), pytest.raises(mutant.catches) as caught:
        mutant.run(mutant.first)
    assert caught.value.__notes__[-1].endswith(
        f"repeat: .venv/bin/python -m tests.soak toy --seed {mutant.first}"
    )
