"""What `make test` shows at the least, alike for every system; `make soak` has no ceiling."""

from collections.abc import Callable
from typing import Protocol, TypeVar

FAULTS_S = 720.0
"""Simulated time under faults of each clustered system: 0.2 hours."""
IMAGES = 500
"""Crash images of each format of a store."""
SHARES = 5
"""The first seed of each share is run twice, and both runs are the same."""
_SEEDS_MAX = 1_000


class Outcome(Protocol):
    """What a run came to."""

    @property
    def faults_s(self) -> float:
        """How long faults were possible, in simulated time."""


Result = TypeVar("Result", bound=Outcome)


def under_faults(share: int, run: Callable[[int], Result]) -> list[Result]:
    """Run seed after seed, until a share of all time under faults has passed."""
    outcomes: list[Result] = []
    for seed in range(share * _SEEDS_MAX, (share + 1) * _SEEDS_MAX):
        outcomes.append(run(seed))
        if sum(outcome.faults_s for outcome in outcomes) >= FAULTS_S / SHARES:
            return outcomes
    raise AssertionError(f"{_SEEDS_MAX} runs have too few faults: {outcomes[-1]}")


def is_first(seed: int) -> bool:
    """Whether a seed is the first one of its share."""
    return seed % _SEEDS_MAX == 0
