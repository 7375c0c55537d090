"""How long to wait before an attempt is repeated: longer each time, bounded, with jitter."""

import random

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

    def delay_s(self, failures: int, random_source: random.Random) -> float:
        """The pause after so many failures; 0 gives the first pause."""
        longest_ms = min(self.longest_ms, self.first_ms * (1 << min(failures, 20)))
        return random_source.uniform(longest_ms * (1 - self.jitter), longest_ms) / 1000
