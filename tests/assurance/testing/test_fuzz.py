"""50,000 different inputs for every parser of outside bytes; `make soak` goes on without end."""

import itertools

import pytest

from raftwood.testing import fuzz
from tests.kits.fuzz import TARGETS

INPUTS = 50_000
PORTION = 10_000


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_parser_survives_any_input(name: str) -> None:
    target, seeds = TARGETS[name]
    tried: set[bytes] = set()

    def try_once(data: bytes) -> None:
        """From a short seed the mutator makes many inputs more than once: they count once."""
        if data not in tried:
            tried.add(data)
            target(data)

    for seed in itertools.count():
        fuzz(try_once, seeds, count=PORTION, seed=seed)
        if len(tried) >= INPUTS:
            return
