"""Whole nodes in virtual time while partitions move: nothing is lost, forgotten, or frozen long."""

import pytest

from raftwood.zeppelin.model import TableConfig
from tests.kits.zeppelin.simulation.moving import run_moving
from tests.kits.zeppelin.simulation.mutants import MUTANTS
from tests.kits.zeppelin.simulation.steps import (
    ONE_ACK,
    Failure,
    How,
    Step,
    Who,
    failures_of,
    in_turns,
    run_failures,
)
from tests.kits.zeppelin.simulation.world import FAST, SAFE
from tests.kits.zeppelin.violations import Broken, Harm

SEEDS = 3
MUTANT_SEEDS = 10
LINK_LOST = Failure(Step.FROZEN, Who.SOURCE, How.LINK, lasting_s=1.2)
"""The master is well, and what it writes before it hears of the freeze, the target does not get."""
TARGET_LOST = Failure(Step.FROZEN, Who.TARGET, How.CUT, lasting_s=8.0)
LEADER_LOST = Failure(Step.ORDERED, Who.LEADER, How.POWER, lasting_s=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("config", [SAFE, FAST], ids=["two acks", "one ack"])
def test_nothing_is_lost_where_nobody_fails_and_no_call_waits_for_long(config: TableConfig) -> None:
    outcome = run_moving(1, config=config, is_calm=True).result
    assert outcome.moved > 3
    assert outcome.handovers > 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_partitions_move_among_nodes_that_come_and_go_whatever_happens(seed: int) -> None:
    assert run_moving(seed, twice=seed == 0).result.moved


@pytest.mark.slow
@pytest.mark.parametrize("is_of_master", [True, False], ids=["a master", "a slave"])
@pytest.mark.parametrize("who", Who)
def test_whoever_fails_at_a_step_of_a_migration_it_ends(who: Who, is_of_master: bool) -> None:
    failures = in_turns(failures_of(who, is_of_master=is_of_master))
    # A source that another one is master for, after a failover, is not frozen.
    assert run_failures(failures).result >= len(failures) - 2


def test_what_one_replica_has_acked_is_handed_over_though_the_target_is_not_reached() -> None:
    assert run_failures([LINK_LOST] * 4, config=ONE_ACK, is_calm=True).result == 4


@pytest.mark.parametrize("step", [Step.ORDERED, Step.CATCHING_UP, Step.FROZEN])
def test_a_migration_is_cancelled_at_each_step(step: Step) -> None:
    assert run_failures([Failure(step, Who.SOURCE, How.CANCEL, 0.0)] * 12).result == 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "harm", "failures"),
    [
        ("hand-over without word of the freeze", Harm.LOST, [LINK_LOST] * 4),
        ("hand-over by old heartbeats", Harm.LOST, [LINK_LOST] * 4),
        ("stuck is never left", Harm.FROZEN, [TARGET_LOST]),
        ("migrations are forgotten", Harm.FORGOTTEN, [LEADER_LOST] * 2),
        ("old data is kept", Harm.STALLED, [LEADER_LOST] * 2),
    ],
)
def test_a_planted_bug_is_caught_by_what_it_breaks(
    mutant: str, harm: Harm, failures: list[Failure]
) -> None:
    """Some seed shows it, and none shows something else before."""
    for seed in range(MUTANT_SEEDS):
        try:
            with MUTANTS[mutant]():
                run_failures(failures, seed=seed, config=ONE_ACK, is_calm=True)
        except Broken as broken:
            assert broken.harm is harm
            return
    pytest.fail(f"not caught by {MUTANT_SEEDS} seeds: {mutant}")
