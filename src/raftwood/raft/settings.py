"""Settings of raft groups: timing and bounds."""

from typing import Annotated

from msgspec import Meta

from raftwood.base.errors import InvalidConfiguration
from raftwood.base.names import FRAME_BYTES_MAX
from raftwood.base.settings import Section
from raftwood.disk.segment_log import LogSettings


class RaftHostSettings(Section, frozen=True):
    """Timing and bounds of the raft groups on a store; the timing is equal on all stores."""

    tick_ms: Annotated[
        int, Meta(ge=1, le=10_000, description="One tick: a leader's heartbeats come so often.")
    ] = 100
    election_ticks: Annotated[
        int,
        Meta(ge=2, le=1000, description="Silence of a leader after which others stand, in ticks."),
    ] = 10
    message_bytes_max: Annotated[
        int, Meta(ge=1 << 10, le=16 << 20, description="Entries in one message to a follower.")
    ] = 1 << 20
    in_flight_bytes_max: Annotated[
        int, Meta(ge=1 << 10, description="Entries on their way to one follower of one group.")
    ] = 16 << 20
    proposal_bytes_max: Annotated[
        int,
        Meta(ge=1 << 10, description="Proposals of one group that wait before more are refused."),
    ] = 32 << 20
    host_proposal_bytes_max: Annotated[
        int,
        Meta(ge=1 << 10, description="Proposals of all groups that wait before more are refused."),
    ] = 256 << 20
    entry_cache_bytes_max: Annotated[
        int, Meta(ge=0, description="Applied entries kept in memory, for each group.")
    ] = 4 << 20
    host_entry_cache_bytes_max: Annotated[
        int, Meta(ge=0, description="Applied entries kept in memory, for all groups together.")
    ] = 256 << 20
    reads_waiting_max: Annotated[
        int, Meta(ge=1, description="Reads of one group that wait before more are refused.")
    ] = 10_000
    snapshot_entries: Annotated[
        int,
        Meta(ge=0, description="Entries applied between two snapshots; 0: only on request."),
    ] = 100_000
    snapshot_entries_kept: Annotated[
        int, Meta(ge=0, description="Entries kept before a snapshot, for followers that lag.")
    ] = 10_000
    snapshot_chunk_bytes: Annotated[
        int, Meta(ge=1 << 10, le=8 << 20, description="A snapshot travels in pieces of this size.")
    ] = 1 << 20
    quiesce_ticks: Annotated[
        int, Meta(ge=0, description="Ticks without work after which a group sleeps; 0: never.")
    ] = 2
    slow_sync_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="A leader whose syncs take so long, and four times as long as those of "
            "enough others, lets one of these lead; 0: never.",
        ),
    ] = 500
    repair_log: Annotated[
        bool,
        Meta(
            description="At a start, set a damaged log aside and let the other stores fill a new "
            "one; without it the store does not start."
        ),
    ] = True
    session_expiry_ms: Annotated[
        int, Meta(ge=1000, description="A client's session ends when unused for so long.")
    ] = 3_600_000

    @property
    def command_bytes_max(self) -> int:
        """The largest command that is taken."""
        return self.in_flight_bytes_max // 2


def check_fit(settings: RaftHostSettings, log: LogSettings) -> None:
    """A message's entries are written and sent as a whole: they have to fit a write and a frame."""
    largest = settings.in_flight_bytes_max + settings.message_bytes_max
    if largest > FRAME_BYTES_MAX // 2:
        raise InvalidConfiguration(
            f"in_flight_bytes_max and message_bytes_max ({largest} bytes) are above what a frame "
            f"between stores leaves room for ({FRAME_BYTES_MAX // 2} bytes): lower them"
        )
    if largest * 5 // 4 > log.write_bytes_max:
        raise InvalidConfiguration(
            f"in_flight_bytes_max and message_bytes_max ({largest} bytes) do not fit a write to "
            f"the log ({log.write_bytes_max} bytes): lower them, or raise segment_bytes"
        )
