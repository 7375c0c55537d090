"""Twenty writers contend for a log, on ledgers in memory and on simulated bookies that fail."""

import pytest

from raftwood.base.errors import RaftwoodError
from tests.simulation.dlog import Plan, mutants, run_dlog
from tests.simulation.dlog.notebook import Violation

SMALL = Plan(sessions=2, messages=12, lost=0.2, entries_max=2)


@pytest.mark.parametrize("seed", range(4))
def test_every_acked_message_is_there_once_in_order_and_without_a_hole(seed: int) -> None:
    report = run_dlog(seed, SMALL)
    assert report.acked
    assert report.takeovers > 20


@pytest.mark.slow
def test_two_runs_of_one_seed_are_the_same() -> None:
    run_dlog(5, SMALL, twice=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_bookies_that_are_killed_and_come_back_lose_nothing(seed: int) -> None:
    plan = Plan(sessions=2, messages=12, bookies=4, shrinks=seed % 2 == 1)
    assert run_dlog(100 + seed, plan).acked


OTHER_PLANS: dict[mutants.Mutant, Plan] = {
    mutants.believes_that_a_lost_answer_is_a_no: Plan(
        writers=3, sessions=2, messages=30, lost=0.5, crashes=0.5, entries_max=1
    ),
    mutants.deletes_what_was_just_fenced: Plan(
        sessions=2, messages=12, lost=0.2, entries_max=2, bookies=4, delay_ms=1
    ),
    mutants.deletes_before_the_record_says_so: Plan(
        sessions=2, messages=12, lost=0.2, entries_max=2, shrinks=True
    ),
}
FIRST_SEEDS: dict[mutants.Mutant, int] = {mutants.writes_to_the_next_ledger_at_once: 3}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_planted_bug_is_caught(mutant: mutants.Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    first = FIRST_SEEDS.get(mutant, 0)
    with pytest.raises((Violation, RaftwoodError, ExceptionGroup)):
        for seed in range(first, first + 8):
            run_dlog(seed, OTHER_PLANS.get(mutant, SMALL))
