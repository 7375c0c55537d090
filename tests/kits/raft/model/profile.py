"""What one run of the model is like: drawn from its seed, so that runs differ in kind."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """Sizes, settings, and how likely each fault is when its turn comes."""

    nodes: int
    async_writes: bool
    prevote: bool
    check_quorum: bool
    learners: int
    changes: bool
    window: int
    message_bytes: int
    applying_bytes: int
    drop: float
    duplicate: float
    reorder: float
    crash: float
    partition: float
    compact: float
    contest: float
    """How often a client tells a node to stand for election."""
    restart: float
    delay_ready: float
    """How often a node's work waits, so that a crash loses it."""

    @classmethod
    def choose(cls, seed: int) -> "Profile":
        source = random.Random(f"raft model {seed}")
        protected = source.random() < 0.5
        faulty = source.random() < 0.85
        return cls(
            nodes=source.choice((3, 3, 3, 5, 5)),
            async_writes=source.random() < 0.5,
            prevote=protected or source.random() < 0.3,
            check_quorum=protected or source.random() < 0.3,
            learners=source.choice((0, 0, 0, 1, 2)),
            changes=source.random() < 0.5,
            window=source.choice((2, 8, 64)),
            message_bytes=source.choice((1, 40, 1 << 20)),
            applying_bytes=source.choice((1, 100, 1 << 20)),
            drop=source.choice((0.0, 0.01, 0.1)) if faulty else 0.0,
            duplicate=source.choice((0.0, 0.02, 0.1)) if faulty else 0.0,
            reorder=source.choice((0.0, 0.05, 0.3)) if faulty else 0.0,
            crash=source.choice((0.0, 0.02, 0.15)) if faulty else 0.0,
            partition=source.choice((0.0, 0.02, 0.1)) if faulty else 0.0,
            compact=source.choice((0.0, 0.05, 0.3)),
            contest=source.choice((0.003, 0.01, 0.05)),
            restart=source.choice((0.02, 0.2)),
            delay_ready=source.choice((0.0, 0.1)),
        )
