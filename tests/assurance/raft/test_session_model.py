"""Sessions keep their promises under much seeded traffic; planted bugs are found."""

import pytest

from tests.kits.raft.session_model import run
from tests.kits.raft.session_mutants import MUTANTS

OPERATIONS = 30_000


@pytest.mark.parametrize("seed", range(2))
def test_sessions_do_what_the_model_says(seed: int) -> None:
    counts = run(seed, OPERATIONS)
    # A run in which nothing goes wrong would show nothing.
    for name in ("overloaded", "session_expired", "conflict: was applied"):
        assert counts[name] >= 20, counts
    assert counts["conflict: acknowledged"] >= 200, counts
    assert counts["bytes"] >= OPERATIONS // 3, counts


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch()
