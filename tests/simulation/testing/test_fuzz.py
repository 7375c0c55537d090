"""Every parser of outside bytes takes its valid inputs and survives some that were changed."""

import pytest

from raftwood.testing import fuzz
from tests.kits.fuzz import TARGETS


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_parser_takes_its_seeds_and_survives_other_inputs(name: str) -> None:
    target, seeds = TARGETS[name]
    for seed in seeds:
        target(seed)
    assert fuzz(target, seeds, count=500, seed=0).tried > 100
