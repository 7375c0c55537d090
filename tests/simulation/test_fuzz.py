"""A million mutated inputs per parser; `make soak` goes on with other seeds.

An input of a way in is a whole request with all its records: it takes ten times as long.
"""

import pytest

from raftwood.simulation import fuzz
from tests.kits.fuzz import TARGETS

INPUTS = 1_000_000
REQUESTS = 200_000


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_parser_survives_any_input(name: str) -> None:
    target, seeds = TARGETS[name]
    count = REQUESTS if name.startswith("way in") else INPUTS
    # In one go, so that an input is tried once and not in every share.
    report = fuzz(target, seeds, count=count, seed=0)
    assert report.inputs == count
    assert report.tried > count / 8


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_seeds_themselves_are_taken(name: str) -> None:
    target, seeds = TARGETS[name]
    for seed in seeds:
        target(seed)
