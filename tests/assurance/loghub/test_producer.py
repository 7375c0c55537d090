"""A producer stores every record once and in order per key; planted bugs are found."""

import pytest

from tests.kits.loghub.producer_model import MUTANTS, run


def test_every_record_is_stored_once_and_in_order_per_key() -> None:
    for seed in range(30, 150):
        world = run(seed, linger_s=0.05 * (seed % 2))
        assert {record.outcome for record in world.given} == {"stored"}
        assert sum(len(log.records) for log in world.logs.values()) == len(world.given)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch()
