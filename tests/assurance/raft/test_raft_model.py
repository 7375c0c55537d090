"""Two million events of raft's core under seeded faults; planted bugs are found."""

import pytest

from tests.kits.models import run_seeds
from tests.kits.raft.model import run
from tests.kits.raft.model.mutants import MUTANTS

EVENTS = 2_000_000
SHARES = 8


@pytest.mark.parametrize("share", range(SHARES))
def test_faults_break_no_promise(share: int) -> None:
    run_seeds(1000 * share, lambda seed: run(seed, 25_000).events, until=EVENTS / SHARES)


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_repeats_its_run(seed: int) -> None:
    assert run(seed, 10_000) == run(seed, 10_000)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch(seeds_max=400)
