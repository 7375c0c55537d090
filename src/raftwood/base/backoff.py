"""Pauses before an attempt is repeated: longer each time, bounded, with jitter."""

import random
from collections.abc import Iterator
from itertools import count

import msgspec


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Pauses that double from the first to the longest.

    The jitter keeps clients that failed in the same moment from coming back in the same moment.
    """

    first_ms: float = 50
    longest_ms: float = 5_000
    jitter: float = 0.5
    """The share of a pause that is random: a pause of 1 s lasts 0.5 s to 1 s at 0.5, and anything
    up to 1 s at 1."""

    def delay_ms(self, failures: int, draw: float) -> float:
        """The pause after a number of earlier failures; `draw` is a random number below 1."""
        longest_ms = min(self.longest_ms, self.first_ms * (1 << min(failures, 20)))
        return longest_ms * (1 - self.jitter * (1 - draw))

    def delay_s(self, failures: int, random_source: random.Random) -> float:
        return self.delay_ms(failures, random_source.random()) / 1000

    def delays_s(self, random_source: random.Random) -> Iterator[float]:
        """Yields the pauses of a series of failures."""
        return (self.delay_s(failures, random_source) for failures in count())
