"""HAKeeper's settings: how time is counted, and when silence means that somebody is gone.

They decide what the leader's store plans and proposes; the state machine itself takes what it needs
from the commands, so that replicas with different settings still agree.
"""

from typing import Annotated

from msgspec import Meta

from raftwood.base.settings import Section


class HaKeeperSettings(Section, frozen=True):
    """Timing and bounds of HAKeeper; the same on all stores, so that a new leader plans alike."""

    scope = "cluster"

    log_shards: Annotated[
        int, Meta(ge=0, le=9_999, description="Log shards that a new cluster begins with.")
    ] = 1
    tn_shards: Annotated[
        int, Meta(ge=0, le=9_999, description="TN shards that a new cluster begins with.")
    ] = 0
    log_replicas: Annotated[
        int, Meta(ge=1, le=64, description="Replicas of each log shard of a new cluster.")
    ] = 3
    hakeeper_replicas: Annotated[
        int, Meta(ge=1, le=64, description="Replicas of HAKeeper itself.")
    ] = 3
    tick_ms: Annotated[
        int, Meta(ge=10, le=10_000, description="One tick: plans are made so often.")
    ] = 500
    heartbeat_ms: Annotated[
        int, Meta(ge=10, le=60_000, description="Stores and services report so often.")
    ] = 1000
    store_down_ticks: Annotated[
        int, Meta(ge=2, description="Silence after which a store's replicas are replaced.")
    ] = 60
    service_down_ticks: Annotated[
        int, Meta(ge=2, description="Silence after which a service's work is given to others.")
    ] = 20
    service_removed_ticks: Annotated[
        int, Meta(ge=2, description="Silence after which a service is forgotten.")
    ] = 7200
    order_ticks: Annotated[
        int, Meta(ge=2, le=10_000, description="An order that nobody acknowledged ends then.")
    ] = 30
    zombie_ticks: Annotated[
        int,
        Meta(ge=2, description="A replica is no member for so long before it is removed."),
    ] = 120
    leaderless_ticks: Annotated[
        int, Meta(ge=2, description="An alarm is raised for a shard without leader for so long.")
    ] = 20
    bootstrap_grace_ticks: Annotated[
        int, Meta(ge=1, description="Wait for all first stores before shards begin without some.")
    ] = 20
    bootstrap_ticks: Annotated[
        int, Meta(ge=2, description="A cluster that does not run by then has failed to begin.")
    ] = 240
    lag_entries: Annotated[
        int, Meta(ge=0, description="A learner so close behind the leader may get a vote.")
    ] = 1000
    moves_every_ticks: Annotated[
        int, Meta(ge=1, description="One move for the sake of balance within so many ticks.")
    ] = 10

    def __post_init__(self) -> None:
        if self.zombie_ticks < self.store_down_ticks:
            # Within that time a leader that still lives has told of whoever it has added.
            raise ValueError("zombie_ticks is below store_down_ticks; make it as large at least")
