"""Consumer groups of several gateways: one reader for a shard, nothing lost, keys in order."""

import pytest

from tests.kits.loghub.groups import Weather, run_groups
from tests.kits.loghub.groups.mutants import MUTANTS
from tests.kits.loghub.groups.notebook import Violation
from tests.kits.simulation.seeds import promising

SEEDS = 60
PROMISING = {"tells what was refused": 50}
"""Seeds to begin with: those before show nothing."""
ROUGH = Weather(slow=0.15, join=0.3, leave=0.0, crash=0.05, freeze=0.5, reshard=0.05)


def test_faults_break_no_promise() -> None:
    reports = [run_groups(seed) for seed in range(8)]
    assert sum(report.put for report in reports) > 5_000
    assert sum(report.consumers for report in reports) > 30


@pytest.mark.slow
def test_many_runs_break_no_promise() -> None:
    for seed in range(100, 180):
        run_groups(seed)


def test_nothing_is_read_twice_where_nobody_crashes() -> None:
    for seed in range(200, 204):
        calm = Weather(slow=0.02, join=0.2, leave=0.15, reshard=0.2)
        assert run_groups(seed, calm).doubles == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    for seed in promising(PROMISING.get(name, 0), SEEDS):
        try:
            with MUTANTS[name]():
                run_groups(seed, ROUGH)
        except Violation:
            return
    pytest.fail(f"{name}: not caught within {SEEDS} runs")
