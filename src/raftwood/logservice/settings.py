"""The log service's settings."""

from typing import Annotated

from msgspec import Meta

from raftwood.base.errors import InvalidConfiguration
from raftwood.base.settings import Section
from raftwood.logservice.records import HEAD_BYTES, RECORD_BYTES_MAX
from raftwood.raft.host.settings import RaftHostSettings


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
