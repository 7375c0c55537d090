"""What one run of the model is like: drawn from its seed, so that runs differ in kind."""

import random
from dataclasses import dataclass

from raftwood.logservice.settings import HaKeeperSettings

SETTINGS = HaKeeperSettings(
    store_down_ticks=6,
    service_down_ticks=5,
    service_removed_ticks=40,
    order_ticks=4,
    zombie_ticks=8,
    leaderless_ticks=4,
    bootstrap_grace_ticks=4,
    bootstrap_ticks=60,
    lag_entries=3,
    moves_every_ticks=2,
)


@dataclass(frozen=True)
class Profile:
    """Sizes, and how likely each fault is when its turn comes."""

    stores: int
    spares: int
    """Stores that join later."""
    domains: int
    log_shards: int
    tn_shards: int
    replicas: int
    hakeeper_replicas: int
    services: int
    absent: int
    """First stores that come late."""
    lose_heartbeat: float
    lose_answer: float
    crash: float
    restart: float
    wipe: float
    stop_replica: float
    fork: float
    operate: float
    delay_plan: float
    write: float

    @classmethod
    def choose(cls, seed: int) -> "Profile":
        source = random.Random(f"hakeeper model {seed}")
        faulty = source.random() < 0.9
        stores = source.choice((3, 3, 4, 5))
        replicas = source.choice((1, 3, 3, 3, min(stores, 5)))
        log_shards = source.choice((1, 3, 6))
        return cls(
            stores=stores,
            spares=source.choice((0, 1, 2)),
            domains=source.choice((0, 2, 3)),
            log_shards=log_shards,
            tn_shards=source.randint(0, log_shards),
            replicas=replicas,
            hakeeper_replicas=3,
            services=source.choice((1, 2, 3)),
            absent=source.choice((0, 0, 1)),
            lose_heartbeat=source.choice((0.0, 0.05, 0.3)) if faulty else 0.0,
            lose_answer=source.choice((0.0, 0.05, 0.3)) if faulty else 0.0,
            crash=source.choice((0.0, 0.002, 0.01)) if faulty else 0.0,
            restart=source.choice((0.02, 0.1)),
            wipe=source.choice((0.0, 0.2, 0.5)),
            stop_replica=source.choice((0.0, 0.002)) if faulty else 0.0,
            fork=source.choice((0.0, 0.0, 0.002)) if faulty else 0.0,
            operate=source.choice((0.0, 0.001, 0.004)),
            delay_plan=source.choice((0.0, 0.1)),
            write=source.choice((0.0, 0.3, 0.9)),
        )
