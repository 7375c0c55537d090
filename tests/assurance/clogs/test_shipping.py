"""Shippers and receivers on machines that fail lose nothing, and store nothing twice."""

import msgspec
import pytest

from tests.kits.clogs.simulation import choose_plan, run_clogs
from tests.kits.clogs.simulation.mutants import MUTANTS
from tests.kits.clogs.simulation.streams import run_streams
from tests.kits.floors import SHARES, under_faults


@pytest.mark.parametrize("share", range(SHARES))
def test_every_promised_line_is_stored_once_and_in_order(share: int) -> None:
    outcomes = under_faults(share, lambda seed: run_clogs(seed).result)
    assert sum(outcome.promised for outcome in outcomes) > 1_000


@pytest.mark.parametrize("seed", range(2))
def test_a_seed_runs_the_same_twice(seed: int) -> None:
    plan = msgspec.structs.replace(choose_plan(seed), faults_s=5.0, gone_s=0.0, is_isolated=False)
    assert run_clogs(seed, plan, twice=True).result.promised > 50


@pytest.mark.parametrize("seed", range(2))
def test_logstores_whose_shards_change_have_every_line_once(seed: int) -> None:
    lines, shards = run_streams(seed).result
    assert lines > 150
    assert shards > 20


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught_by_what_it_breaks(name: str) -> None:
    MUTANTS[name].catch()
