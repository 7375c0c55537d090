"""Consumer groups under seeded faults keep their promises; planted bugs are found."""

import pytest

from tests.kits.loghub.group_model import run
from tests.kits.loghub.group_model.mutants import EVENTS, MUTANTS


def test_two_hundred_thousand_events_break_no_promise() -> None:
    assert sum(run(seed, EVENTS).events for seed in range(1_000, 1_100)) == 200_000


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch()
