"""What a run is like: how many take part, and how often what happens."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """Counts, chances, and the weights by which events are drawn."""

    consumers: int
    shards: int
    gateways: int
    is_ordered: bool
    lose_request: float
    lose_answer: float
    """It is done, and the consumer does not hear of it."""
    stale: float
    """A gateway does not look at the latest shards."""
    empty: float
    """A shard is sealed before anything was put there."""
    weights: dict[str, float]

    @classmethod
    def choose(cls, seed: int) -> "Profile":
        source = random.Random(f"consumer group {seed}")
        rare = source.choice((0.0, 0.3, 1.0))
        return cls(
            consumers=source.randint(1, 6),
            shards=source.choice((1, 2, 4, 7, 12)),
            gateways=source.randint(1, 3),
            is_ordered=source.random() < 0.7,
            lose_request=source.choice((0.0, 0.05, 0.3)),
            lose_answer=source.choice((0.0, 0.05, 0.3)),
            stale=source.choice((0.0, 0.2, 0.8)),
            empty=source.choice((0.0, 0.3)),
            weights={
                "beat": 30,
                "answer": 30,
                "end_work": source.choice((3, 10, 30)),
                "read": source.choice((3, 10, 30)),
                "crash": source.choice((0.0, 0.2, 1.0)),
                "cut_off": source.choice((0.0, 0.2, 1.0)),
                "time_out": source.choice((0.5, 2)),
                "return_": source.choice((0.5, 2)),
                "split": rare * source.choice((0.2, 1.0)),
                "merge": rare * source.choice((0.2, 1.0)),
                "hand_over": source.choice((1, 5)),
                "delete_shard": rare * source.choice((0.0, 0.5)),
                "go_back": source.choice((0.0, 0.0, 0.1)),
            },
        )
