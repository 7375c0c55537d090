"""The segment log's settings."""

from typing import Annotated

from msgspec import Meta

from raftwood.base.settings import Section


class LogSettings(Section, frozen=True):
    """Sizes and bounds of the shared log; free to change between two starts."""

    segment_bytes: Annotated[
        int,
        Meta(
            ge=16 << 10,
            le=1 << 30,
            description="Size of a segment file; a record takes up to half.",
        ),
    ] = 64 << 20
    flush_bytes_max: Annotated[
        int, Meta(ge=4 << 10, description="Bytes that one sync serves at the most.")
    ] = 8 << 20
    pending_bytes_max: Annotated[
        int,
        Meta(ge=64 << 10, description="Bytes waiting for the disk before appends refuse."),
    ] = 128 << 20
    cache_bytes_max: Annotated[
        int, Meta(ge=0, description="Bytes of the latest records kept in memory.")
    ] = 64 << 20
    runs_live_max: Annotated[
        int, Meta(ge=1, description="Runs in the index (28 bytes each) before refusing.")
    ] = 20_000_000
    live_percent_min: Annotated[
        int,
        Meta(
            ge=0, le=100, description="The oldest segment is copied forward below this live share."
        ),
    ] = 20
    full_retry_ms: Annotated[
        int, Meta(ge=1, description="Wait between attempts to get room on a full disk.")
    ] = 1000

    @property
    def reserve_bytes(self) -> int:
        """Kept in the active segment for states and truncations when the disk is full."""
        return min(1 << 20, self.segment_bytes // 8)

    @property
    def write_bytes_max(self) -> int:
        """The most that one write (headers and payloads) may take."""
        return self.segment_bytes // 2
