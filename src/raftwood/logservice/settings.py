"""Settings of the log service and of HAKeeper.

HAKeeper's decide what the leader's store plans and proposes; the state machine itself takes what
it needs from the commands, so that replicas with different settings still agree.
"""

from typing import Annotated

from msgspec import Meta

from raftwood.base.errors import InvalidConfiguration
from raftwood.base.settings import Section
from raftwood.logservice.records import HEAD_BYTES, RECORD_BYTES_MAX
from raftwood.raft.settings import RaftHostSettings


class LogServiceSettings(Section, frozen=True):
    """Log shards on a store: sizes, truncation, and how much of the disk they may take."""

    failure_domain: Annotated[
        str,
        Meta(max_length=128, description="Machine, rack or zone; replicas of a shard are spread."),
    ] = ""
    record_bytes_max: Annotated[
        int,
        Meta(ge=1 << 10, le=RECORD_BYTES_MAX, description="The largest record that is taken."),
    ] = 4 << 20
    read_bytes_max: Annotated[
        int, Meta(ge=1 << 10, le=16 << 20, description="The most that one read answers.")
    ] = 8 << 20
    truncation_ms: Annotated[
        int, Meta(ge=10, le=600_000, description="The truncation worker looks so often.")
    ] = 5_000
    snapshot_entries: Annotated[
        int, Meta(ge=1, description="Entries between two hidden snapshots of a shard.")
    ] = 1_000
    snapshots_kept: Annotated[
        int, Meta(ge=3, le=1_000, description="Hidden snapshots of a shard; more are thinned out.")
    ] = 64
    disk_alarm_bytes: Annotated[
        int, Meta(ge=0, description="An alarm is raised when less of the disk is free.")
    ] = 2 << 30
    disk_refuse_bytes: Annotated[
        int, Meta(ge=0, description="Appends are refused when less of the disk is free.")
    ] = 512 << 20
    retained_alarm_bytes: Annotated[
        int, Meta(ge=0, description="An alarm is raised when a shard keeps more; 0: never.")
    ] = 16 << 30
    stall_alarm_ms: Annotated[
        int, Meta(ge=0, description="An alarm is raised when truncation frees nothing for so long.")
    ] = 600_000


def check_records_fit(settings: LogServiceSettings, raft: RaftHostSettings) -> None:
    """The largest record has to fit what a raft group takes, or it would never be written."""
    most = raft.command_bytes_max - HEAD_BYTES
    if settings.record_bytes_max > most:
        raise InvalidConfiguration(
            f"logservice.record_bytes_max ({settings.record_bytes_max}) is above what raft groups "
            f"take ({most} bytes): lower it, or raise raft.in_flight_bytes_max above its double"
        )


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
            # Within that time a leader that still lives has reported every member that it added.
            raise ValueError("zombie_ticks is below store_down_ticks; make it as large at least")
