"""Whole nodes in virtual time while partitions move: nothing is lost, forgotten, or frozen long."""

import pytest

from raftwood.zeppelin.model import TableConfig
from tests.kits.zeppelin.simulation.moving import run_moving
from tests.kits.zeppelin.simulation.steps import (
    Failure,
    How,
    Step,
    Who,
    failures_of,
    in_turns,
    run_failures,
)
from tests.kits.zeppelin.simulation.world import FAST, SAFE


@pytest.mark.parametrize("config", [SAFE, FAST], ids=["two acks", "one ack"])
def test_nothing_is_lost_where_nobody_fails_and_no_call_waits_for_long(config: TableConfig) -> None:
    outcome = run_moving(1, config=config, is_calm=True).result
    assert outcome.moved > 3
    assert outcome.handovers > 1


@pytest.mark.parametrize("seed", range(2))
def test_partitions_move_among_nodes_that_come_and_go_whatever_happens(seed: int) -> None:
    assert run_moving(seed).result.moved


@pytest.mark.parametrize("is_of_master", [True, False], ids=["a master", "a slave"])
@pytest.mark.parametrize("who", Who)
def test_whoever_fails_at_a_step_of_a_migration_it_ends(who: Who, is_of_master: bool) -> None:
    failures = in_turns(failures_of(who, is_of_master=is_of_master))
    # A source that another one is master for, after a failover, is not frozen.
    assert run_failures(failures).result >= len(failures) - 2


@pytest.mark.parametrize("step", [Step.ORDERED, Step.CATCHING_UP, Step.FROZEN])
def test_a_migration_is_cancelled_at_each_step(step: Step) -> None:
    assert run_failures([Failure(step, Who.SOURCE, How.CANCEL, 0.0)] * 12).result == 12
