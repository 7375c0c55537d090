"""What one run of the model is like: drawn from its seed, so that runs differ in kind."""

import random
from dataclasses import dataclass

from raftwood.clogs.model import HaRules, LogServer, RingConfiguration

NAMES = [f"s{number}" for number in range(14)]


@dataclass(frozen=True)
class Profile:
    """Sizes, and how likely each thing is when its turn comes."""

    servers: int
    step_share: float
    """Of the gap: time passes by up to twice as much with each event."""
    flip: float
    """That a server goes down, or comes back."""
    mute: float
    """That a server which is up does not answer a ping."""
    slow: float
    """That a pong waits for long."""
    lost: float
    reload: float
    pause: float

    @classmethod
    def choose(cls, seed: int) -> "Profile":
        source = random.Random(f"clogs ha model {seed}")
        return cls(
            servers=source.choice((1, 2, 3, 3, 5, 8, 12)),
            step_share=source.choice((0.01, 0.03)),
            flip=source.choice((0.0005, 0.002, 0.01)),
            mute=source.choice((0.0, 0.1, 0.4)),
            slow=source.choice((0.0, 0.1, 0.5)),
            lost=source.choice((0.0, 0.002, 0.01)),
            reload=source.choice((0.0, 0.0005, 0.003)),
            pause=source.choice((0.0, 0.0002, 0.002)),
        )


def choose_rules(source: random.Random) -> HaRules:
    gap_ms = source.choice((100, 1_000, 1_000, 5_000))
    first_ms = int(gap_ms * source.choice((0, 0.5, 3, 10)))
    return HaRules(
        check_gap_ms=gap_ms,
        invalid_checks_max=source.choice((1, 2, 3, 3, 5)),
        isolated_percent_max=source.choice((0, 10, 34, 50, 100, 100)),
        isolation_first_ms=first_ms,
        isolation_longest_ms=int(first_ms * source.choice((1, 4, 50))),
    )


def choose_ring(source: random.Random, count: int) -> RingConfiguration:
    names = source.sample(NAMES, count)
    return RingConfiguration(
        servers=tuple(LogServer(host=name, port=1, name=name) for name in names),
        ha=choose_rules(source),
    )
