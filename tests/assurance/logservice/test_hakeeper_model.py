"""HAKeeper under seeded faults keeps its promises; planted bugs are found."""

import pytest

from tests.kits.logservice.hakeeper_model import run
from tests.kits.logservice.hakeeper_model.mutants import MUTANTS
from tests.kits.models import run_seeds

EVENTS = 200_000
SHARES = 4


@pytest.mark.parametrize("share", range(SHARES))
def test_faults_break_no_promise(share: int) -> None:
    run_seeds(1000 * share, lambda seed: run(seed, 10_000).events, until=EVENTS / SHARES)


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_repeats_its_run(seed: int) -> None:
    assert run(seed, 5_000) == run(seed, 5_000)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch()
