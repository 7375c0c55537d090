"""What a run is like: how many take part, and how often what happens."""

import random
from dataclasses import dataclass

from msgspec import structs

from raftwood.loghub.consumer.leases import LeaseTimes

TIMES = LeaseTimes(timeout_ms=3_000, poll_ms=500, margin_ms=20)
SHORT_TIMES = structs.replace(TIMES, timeout_ms=TIMES.timeout_ms // 2)

FAULTS = ("crash", "restart", "pause", "cut_off", "outage", "hang")


@dataclass(frozen=True)
class Profile:
    """Counts, chances, and the weights by which events are drawn."""

    workers: int
    shards: int
    chaos_timeouts: int
    """For how many T things go wrong."""
    lose_request: float
    lose_answer: float
    """It is done, and the worker does not hear of it."""
    latency_ms: int
    process_ms: int
    save_every: int
    """Calls of process() for one checkpoint in the store."""
    by_bytes: bool
    pace_ms: int
    """Between events."""
    weights: dict[str, float]
    hangs_on: bool = False
    """One worker's calls of process() never return, also when all else is well again."""
    is_mixed: bool = False
    """Some workers have a shorter timeout than others."""
    late: float = 0.0
    """Of the calls and lists of shards: they arrive long after they were given up, or were true."""
    crash_at: tuple[int, int] | None = None
    """A worker by number, and the step at which it dies."""

    @classmethod
    def choose(cls, seed: int) -> "Profile":
        source = random.Random(f"leases {seed}")
        return cls(
            workers=source.randint(1, 4),
            shards=source.choice((1, 2, 5, 8)),
            chaos_timeouts=source.choice((3, 6, 10)),
            lose_request=source.choice((0.0, 0.0, 0.05, 0.2)),
            lose_answer=source.choice((0.0, 0.0, 0.05, 0.2)),
            latency_ms=source.choice((2, 20, 200)),
            process_ms=source.choice((50, 300, 900)),
            save_every=source.choice((1, 3, 100)),
            by_bytes=source.random() < 0.1,
            pace_ms=source.choice((300, 1_500)),
            weights={
                "join": source.choice((0.5, 2)),
                "drain": source.choice((0.0, 1.0)),
                "crash": source.choice((0.0, 0.5, 2)),
                "restart": source.choice((0.0, 1, 2)),
                "pause": source.choice((0.0, 0.5, 2)),
                "cut_off": source.choice((0.0, 0.5, 2)),
                "outage": source.choice((0.0, 0.0, 0.5)),
                "split": source.choice((0.0, 1)),
                "merge": source.choice((0.0, 1)),
                "hang": source.choice((0.0, 0.0, 1)),
                "write": 5,
            },
            hangs_on=source.random() < 0.15,
            is_mixed=source.random() < 0.15,
            late=source.choice((0.0, 0.0, 0.02, 0.1)),
        )

    @property
    def is_graceful(self) -> bool:
        """Workers come and go, and nothing fails."""
        return not (
            self.lose_request
            or self.lose_answer
            or self.late
            or self.crash_at
            or self.hangs_on
            or any(self.weights[fault] for fault in FAULTS)
        )

    @classmethod
    def graceful(cls, seed: int) -> "Profile":
        """Workers come and go, and nothing fails."""
        chosen = cls.choose(seed)
        calm = dict.fromkeys(FAULTS, 0.0)
        return cls(
            **{
                **{name: getattr(chosen, name) for name in cls.__dataclass_fields__},
                "lose_request": 0.0,
                "lose_answer": 0.0,
                "late": 0.0,
                "hangs_on": False,
                "latency_ms": 20,
                "process_ms": 50,
                "weights": {**chosen.weights, **calm, "join": 2, "drain": 1},
            }
        )
